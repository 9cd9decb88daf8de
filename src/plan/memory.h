// Predicts the peak memory of a training step: what passes (trace/pass_trace.h) and the update (trace/update_trace.h) allocate and free as
// the program itself does it on the counting device, and what is held between them.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "plan/run_shape.h"

namespace ingot::plan {

/// Bytes at the moment of the peak; activations and temporaries are those of the phase that needs most.
struct StepMemory {
  int64_t weights_bytes = 0, gradients_bytes = 0, optimizer_bytes = 0;  // optimizer: masters and moments
  int64_t forward_backward_bytes = 0;                                   // most that activations, their gradients and work areas take
  int64_t update_bytes = 0;                                             // most that the update's work areas take
  int64_t validation_bytes = 0;                                         // most that a validation's activations take
  int64_t graphs_bytes = 0;                                             // what graphs of passes keep: as much as a pass takes
  int64_t program_bytes = 0;                                            // resident before the model was built
  int64_t gemm_kernels_bytes = 0;                                       // what oneDNN makes and keeps for each shape of a GEMM in bf16
  int64_t shared_bytes = 0;                                             // what ranks of one machine exchange through
  int64_t checkpoint_bytes = 0;                                         // the copy that is written while training goes on
  int64_t host_bytes = 0;     // beside a GPU's: masters and moments left there, copies for checkpoints
  int64_t reserve_bytes = 0;  // what the allocator keeps beyond what lives

  int64_t state_bytes() const { return weights_bytes + gradients_bytes + optimizer_bytes; }
  int64_t working_bytes() const;  // the largest of the three phases
  const char* peak_phase() const;
  int64_t total_bytes() const;
};

nlohmann::ordered_json to_json(const StepMemory& memory);

/// The model need not be allocated. `program_bytes`: measured at start.
StepMemory predict_memory(const models::Model& model, const RunShape& run, int64_t program_bytes, PassTraces& traces);
StepMemory predict_memory(const models::Model& model, const RunShape& run, int64_t program_bytes);

/// What this rank writes of a checkpoint: its share of weights, masters and moments, which the optimizer itself names in a trace.
int64_t predict_saved_bytes(const models::Model& model, const RunShape& run, PassTraces& traces);

/// A lower bound of state and working bytes, without a trace of the update or of what ZeRO gathers within passes.
int64_t least_bytes(const models::Model& model, const RunShape& run, PassTraces& traces);

}  // namespace ingot::plan
