// The parts of a machine's profile that are measured by processes of their own, and what of it is kept for runs.
#pragma once

#include <string>
#include <vector>

#include "bench/sweeps.h"
#include "comm/rank_environment.h"
#include "plan/profile.h"
#include "resilience/stop_signal.h"

namespace ingot::bench {

/// GEMM back ends that were measured join what the cache has of this machine, for runs of as many threads.
void keep_libraries(const plan::MachineProfile& measured);

/// Of a process that measures beside others: all do, so many rounds, and the first one's profile counts and goes to `file`. Each round goes
/// on from the one there, if there is any.
void measure_as_rank(const std::string& file, const std::vector<std::string>& dtypes, const comm::RankEnvironment& ranks, int count);

/// Numbers of ranks that runs on this machine may well have. GPUs do not share their cores: none.
std::vector<int> numbers_of_ranks(const std::string& device);

/// Which rounds of measurements (rounds.h) make up a profile.
struct RoundsOptions {
  int rounds = 1;
  /// fp32, bf16 or all: behind each round steps of small models, in a process of its own, as what a run changes of a process is not for
  /// measurements that follow. "": none.
  std::string steps_dtype;
};

/// Runs them on this process's threads into `profile`, which becomes the middle of the rounds. False when it was stopped or the steps
/// failed, which is logged; what was measured is kept.
bool measure_rounds(const std::string& title, const std::vector<Measurement>& measurements, const RoundsOptions& options,
                    const resilience::StopSignal& stop, plan::MachineProfile& profile);

/// Measures so many ranks at the same time. The profile goes to the cache alone, where runs and plans of as many look
/// for it. False as above.
bool measure_side_by_side(const std::string& dtype, int ranks, int rounds, const resilience::StopSignal& stop);

}  // namespace ingot::bench
