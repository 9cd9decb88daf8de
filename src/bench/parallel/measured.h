// A layer or a block under a way of spreading it over ranks (schedule/layout.h), run by real ranks: time, exposed communication, memory and
// messages, in the fields that model.h gives for clusters that are not available.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "comm/world.h"
#include "device/aten.h"
#include "resilience/stop_signal.h"
#include "schedule/sweep.h"

namespace ingot::bench {

/// Called by all ranks of `world`, of which layout.ranks there are; the same on each. Times are medians of `repeats` runs of the slowest
/// rank, exposed those of standing still for messages. peak_bytes: tensors of a rank; of threads their share of the process's.
/// Throws ConfigError, on all ranks, for a layout that schedule::check refuses.
schedule::Result measure_parallel(const schedule::Layout& layout, int repeats, comm::World& world, at::Device device = at::kCPU);

/// What a sweep asks for, measured, for the number of ranks that `world` has. `on_result` hears of each case (of how many, and which), and
/// says whether to go on; all ranks stop when one of them does not want to.
using OnCase = std::function<bool(size_t done, size_t all, const schedule::Layout& next)>;
schedule::SweepResult measure_sweep(const schedule::Sweep& sweep, const std::vector<schedule::Layer>& layers, int repeats,
                                    comm::World& world, at::Device device, const OnCase& on_case);

/// The same of several sweeps, with a bar on rank 0 and an end at Ctrl-C, which keeps what was measured. A process has one `stop`.
schedule::SweepResult measure_sweeps(const std::vector<schedule::Sweep>& sweeps, int repeats, comm::World& world, at::Device device,
                                     const resilience::StopSignal& stop);

/// Lengths from which one method needs less than another, of those measured.
void add_crossovers(schedule::SweepResult& sweep);

/// What schedule::to_json wrote.
schedule::SweepResult sweep_from_json(const nlohmann::json& json);

}  // namespace ingot::bench
