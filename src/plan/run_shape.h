// What of a training run decides its step time and memory, besides the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "layers/dtype.h"
#include "models/model.h"
#include "optim/config.h"
#include "plan/trace/pass_trace.h"

namespace ingot::plan {

/// What the busiest of ranks that share experts gets, of the mean: routers that are kept in balance cost 8 to 20 % of throughput against
/// rows that are forced to be even (NVIDIA's MoE ModelZoo, long contexts on H100).
inline constexpr double kExpectedExpertLoad = 1.2;

struct RunShape {
  // Sequences per step and at a time (0 = all) of one data rank; tokens of a sequence, on however many ranks.
  int64_t batch = 8, microbatch = 0, seq = 256;
  std::string precision = "fp32";  // as in train.precision
  models::Recompute recompute = models::Recompute::none;
  bool offloads_activations = false, uses_graphs = false;
  bool weighs_losses = false;  // pairs of answers are learned (PassShape)
  bool is_reproducible = false;
  optim::OptimizerConfig optimizer;
  /// Lengths of the documents in some rows of the data, together whole rows: attention sees no further. Empty: rows are not cut.
  std::vector<int64_t> documents;
  int64_t validation_batch = 0;  // sequences of a validation batch, which runs without gradients; 0 = no validation
  int64_t threads = 1;
  int64_t world = 1;                            // ranks of the job
  double ranks_per_core = 1;                    // threads of all ranks of a machine for each of its cores, 1 at least
  bool is_here = true;                          // on this machine, and not on a cluster that is not available
  device::Target target = device::Target::cpu;  // whose kernels
  double expert_load = kExpectedExpertLoad;     // where ranks share experts: rows on the busiest of them over the mean
  // Ranks with other tokens but the same parts of the weights; parallel/buckets.h says what ZeRO shares out.
  int64_t replicas = 1, zero = 0;
  int64_t bucket_bytes = 0;
  int64_t shared_bytes = 0;  // memory that processes of one machine exchange through, as far as this rank comes to hold it
  bool saves_checkpoints = false;
  int64_t staging_limit_bytes = 0;   // of the memory that a checkpoint is copied to; 0 = what the rank writes
  int64_t memory_staging_bytes = 0;  // the same for checkpoints that stay in memory, at most; 0 = there are none
  int64_t kept_microbatches = 1;     // whose activations a pipeline stage keeps at a time
  bool weights_later = false;        // their gradients wait for a pause of the pipeline (zero-bubble)
  double bubble = 0;                 // share of the time of a step's passes in which a stage has nothing to do

  /// A microbatch's pass; and a validation's, which goes forward only.
  PassShape pass_of(const models::Model& part) const;
  PassShape validation_pass_of(const models::Model& part) const;
  UpdateShape update() const;
  /// `documents` where attention is predicted by them: ranks that share a row see parts of them, which are not looked into.
  const std::vector<int64_t>& documents_of(const models::Model& part) const;
  int64_t sequences_at_once() const { return microbatch > 0 && microbatch < batch ? microbatch : batch; }
  int64_t microbatches() const { return (batch + sequences_at_once() - 1) / sequences_at_once(); }
  /// Ranks that have the same of this parameter and sum its gradients: those that share it out under ZeRO. What an axis does not cut, its
  /// ranks all have.
  int64_t holders(const layers::Parameter& p, const parallel::Layout& layout) const;
  /// Ranks that have different parts of it, as an axis cuts it.
  static int64_t parts(const layers::Parameter& p, const parallel::Layout& layout);
  /// By which profiles have their figures.
  std::string dtype() const { return layers::dtype_name(precision); }
  int64_t element_bytes() const { return c10::elementSize(layers::precision_named(precision).dtype); }
};

}  // namespace ingot::plan
