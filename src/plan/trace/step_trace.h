// One rank's training step as the program itself does it, on the counting device: no data, no other ranks, no GPU, some milliseconds.
// What is counted is exact for the ranks that are like the traced one: operations, FLOPs, bytes sent, storages. Two things are
// assumptions, since there is no data: experts are sent even shares (times a stated load), and no gradient or loss is non-finite.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "device/trace.h"
#include "device/virtual_device.h"
#include "train/config.h"

namespace ingot::plan {

struct TraceRequest {
  train::RunConfig config;
  int64_t phase = 0;  // of the recipe
  int rank = 0, world = 1;
  device::Target target = device::Target::gpu;  // whose kernels
  double expert_load = 1;                       // what this rank's experts are sent, over the mean
};

/// Parts of a step, as device/trace.h's scopes tell them apart.
enum class StepPart : uint8_t { data, forward, backward, optimizer, other };
const char* name_of(StepPart part);

struct StepTrace {
  device::Trace trace;     // one step: operations, communication, host accesses; allocations from the making of the model on
  std::string layout;      // "data 4 x tensor 2"; "one rank"
  int64_t parameters = 0;  // of this rank, trained
  int64_t tokens = 0;      // of this rank's part of the batch
  int64_t rest_bytes = 0;  // between steps
  double seconds = 0;      // that tracing took

  StepPart part_of(int32_t scope) const;
  /// What lives at the step's peak, by name: "weights", "gradients", "optimizer", "backward", and the scope of activations with the
  /// layers' numbers left out ("layer/attention"). Their sum is trace.peak_bytes.
  std::map<std::string, int64_t> peak_by_name() const;
};

/// Throws ConfigError when the layout is impossible or the phase does not exist.
StepTrace trace_step(const TraceRequest& request);

}  // namespace ingot::plan
