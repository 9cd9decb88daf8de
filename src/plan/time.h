// Predicts the time of a training step: its passes as traced (priced_pass.h), its update by what the rules of the optimizer do to each
// parameter. What lies between steps is plan/run_time.h. docs/prediction.md has the table of what is predicted how.
#pragma once

#include <map>
#include <string>

#include "plan/priced_pass.h"
#include "plan/profile.h"
#include "plan/rates.h"
#include "plan/run_shape.h"

namespace ingot::plan {

/// Between a GPU and its host, each way: what nodes of H100 reach over PCIe 5.0 (configs/floors/h100.json).
inline constexpr double kHostLinkBytesPerS = 55e9;

/// Seconds of one step by kind of work.
struct StepTime {
  double gemm_s = 0;  // of linear layers and experts, forward and backward
  double attention_s = 0;
  double kernels_s = 0;              // norms, rotations, activations, routing, moving tokens, adding gradients
  double head_s = 0;                 // vocabulary GEMMs and cross-entropy
  double recompute_s = 0;            // whatever is run a second time
  double optimizer_s = 0;            // gradient norm and update
  std::map<WorkKind, double> kinds;  // all of these, by kind of work
  double waiting_s = 0;              // for other stages of a pipeline; communication is plan/communication.h's
  double between_s = 0;              // between operations, and for data
  double uneven_s = 0;               // for other ranks that are slower for a moment
  double passes_s() const { return gemm_s + attention_s + kernels_s + head_s + recompute_s; }
  double total_s() const { return passes_s() + waiting_s + optimizer_s + between_s + uneven_s; }
  /// Of everything, communication left out.
  std::map<WorkKind, double> by_kind() const;
};

/// `part`: what one rank holds; it need not be allocated. Throws ProfileError when the profile has nothing about the precision.
StepTime predict_step_time(const models::Model& part, const RunShape& run, const MachineProfile& profile);
/// For many runs on one machine; the prices are of the run's precision.
StepTime predict_step_time(const models::Model& part, const RunShape& run, PassPrices& prices);
/// A validation batch, which goes forward only (run.validation_batch); the stages of a pipeline one after another. 0 without validation.
double predict_validation_s(const models::Model& part, const RunShape& run, PassPrices& prices);

}  // namespace ingot::plan
