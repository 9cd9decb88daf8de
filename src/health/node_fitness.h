// Whether a node may take part in a job: some seconds of work whose results are known, on each of its cores and GPUs, its memory and the
// folders that a run writes to, and what its hardware counts. `ingot bench all --check` says how fast a node is; this says whether it is
// right.
#pragma once

#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "health/hardware_counters.h"

namespace ingot::health {

struct FitnessOptions {
  double seconds = 1;                          // of products, on all cores and GPUs at once
  int64_t memory_bytes = int64_t{512} << 20;   // at most, and at most a sixteenth of what can be had
  std::vector<std::filesystem::path> folders;  // to write to; each must exist
  std::string root = "/";                      // of /sys and /proc
  const char* gpu_library = "libnvidia-ml.so.1";
};

struct Fitness {
  std::string node;
  std::vector<std::string> reasons;    // against it; none: it is fit
  std::vector<std::string> looked_at;  // "2 cores: 3210 products in fp32 and bf16"
  HardwareReading hardware;
  double seconds = 0;

  bool is_fit() const { return reasons.empty(); }
  /// "node7 is fit (1.3 s): …" or "node7 is not fit: …", then what was looked at and what cannot be read.
  std::string text() const;
  nlohmann::ordered_json to_json() const;
};

/// Throws nothing: what fails is a reason.
Fitness examine_fitness(const FitnessOptions& options);

}  // namespace ingot::health
