// What one rank holds between its steps and does outside of their passes, as the program itself does it on the counting device: weights,
// gradients, masters and moments in the shares that ZeRO leaves it, sums of gradients, the update, weights on their way back. All layers
// of the rank are there, since the shares that ranks update end anywhere.
#pragma once

#include <string>
#include <vector>

#include "device/trace.h"
#include "device/virtual_device.h"
#include "mesh/config.h"
#include "models/model.h"
#include "optim/config.h"
#include "plan/trace/pass_operation.h"

namespace ingot::plan {

/// What it depends on besides the part of the model.
struct UpdateShape {
  std::string precision = "fp32";
  optim::OptimizerConfig optimizer;
  int64_t replicas = 1, zero = 0;  // as RunShape has them
  int64_t bucket_bytes = 0;        // 0: as traced_bucket_mib() has it
  bool is_reproducible = false;
  device::Target target = device::Target::cpu;
};

struct UpdateTrace {
  using Communications = std::vector<device::Trace::Communication>;
  int64_t weights_bytes = 0, gradients_bytes = 0, optimizer_bytes = 0;  // between steps; optimizer: masters and moments
  int64_t host_bytes = 0;                                               // of masters and moments that lie in the host's memory
  int64_t update_bytes = 0;                                             // the most that the update takes beyond them
  int64_t saved_bytes = 0;                                              // of the tensors that a checkpoint has of what this rank updates
  Communications sums, gathers;                                         // of gradients; of weights that stay
  Communications update;                                                // of the rules: what several ranks own of a matrix
  std::vector<PassOperation> operations;                                // of Dion, of which no profile has measurements
  double seconds = 0;                                                   // that tracing took

  int64_t rest_bytes() const { return weights_bytes + gradients_bytes + optimizer_bytes; }
};

/// The axes that a part of a model is cut by; data as small as its experts allow.
mesh::ParallelConfig axes_of(const parallel::Layout& layout);

/// Of the first rank of the stage that `part` describes. Throws ConfigError where no mesh has such ranks.
UpdateTrace trace_update(const models::Model& part, const UpdateShape& shape);

/// parallel.bucket_mib of a trace. Where gradients' buckets are cut by the group's measured bandwidth (0), nothing can be measured: what
/// ranks of one machine's CPU were seen to need, and what a GPU's links need.
inline double traced_bucket_mib(int64_t bucket_bytes, device::Target target) {
  return bucket_bytes > 0 ? static_cast<double>(bucket_bytes) / (1 << 20) : target == device::Target::cpu ? 1 : 32;
}

}  // namespace ingot::plan
