// Benchmarks whose ranks are processes: the verb starts itself as `ingot launch` does, and rank 0 leaves its results in a file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "device/aten.h"

namespace ingot::bench {

/// What Ctrl-C says while ranks measure.
inline constexpr const char* kRanksStopNote = "\nstopping after this size; what was measured is kept; once more to stop at once\n";

/// Runs `command` (ingot and its arguments) with --as-rank FILE on `ranks` processes and returns what rank 0 wrote. FILE holds `start`
/// before, if that is not empty. Throws when one fails.
nlohmann::json results_of_processes(int ranks, std::vector<std::string> command, const std::string& start = "");

/// Where buffers lie that ranks exchange by `backend`: with nccl the GPU of the rank, else the CPU. Throws UsageError where a machine has
/// fewer GPUs than `local_rank` needs.
at::Device device_for_backend(const std::string& backend, int64_t local_rank);

}  // namespace ingot::bench
