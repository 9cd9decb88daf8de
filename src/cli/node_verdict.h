// What a node is judged by, as the flags of `ingot bench all --check` and `ingot bench verdict` say. Free of torch.
#pragma once

#include <filesystem>
#include <optional>

#include "bench/verdict.h"
#include "cli/options.h"

namespace ingot::cli {

/// Floors, or an earlier profile.
struct Judge {
  std::optional<bench::FloorFile> floors;
  std::optional<plan::MachineProfile> before;
  std::string device, against;
  double tolerance = 0.1;

  /// Throws ConfigError when the earlier profile is of another device or number of threads.
  bench::Verdict judge(const plan::MachineProfile& profile, const bench::TransferRates& transfers) const;
};

/// --baseline, --floors, the shipped floors of this device, or the profile at `cached`, in this order. Throws ConfigError when there is
/// none of them, before anything is measured.
Judge judge_of(const BenchOptions& options, const plan::MachineProfile& machine, const std::filesystem::path& cached);

/// <folder>/<host>.json
void write_verdict(const std::filesystem::path& folder, const bench::Verdict& verdict);

}  // namespace ingot::cli
