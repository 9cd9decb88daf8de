// The optimizer: Muon on hidden matrices, AdamW on everything else, AdamW-driven balancing biases for routers.
//
// It owns fp32 masters of the parameters whose compute dtype is narrower, and the moments (fp64 in fp64 runs). Every state
// tensor has a global name, "optimizer.<kind>.<parameter>", by which checkpoints know it. One thread at a time; the
// parameter list must outlive it.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "layers/parameter.h"
#include "optim/config.h"

namespace ingot::optim {

/// Which rule updates a parameter: Muon takes matrices (and each matrix of a stack); AdamW vectors, convolutions,
/// embeddings and heads. Weight decay applies to matrices and convolutions.
bool takes_muon(const layers::Parameter& parameter, const OptimizerConfig& config);
bool takes_decay(const layers::Parameter& parameter);

struct GradientNorm {
  double norm = 0;
  std::string first_nonfinite;  // name of the first parameter whose gradient has NaN or Inf; empty if all are finite
};

class Optimizer {
 public:
  Optimizer(layers::ParameterList& parameters, const OptimizerConfig& config);

  /// Euclidean norm over all gradients, accumulated in double.
  GradientNorm gradient_norm() const;

  /// One update with gradients scaled by min(1, clip / norm). Afterwards parameters hold the new values in their compute
  /// dtype and the gradients are dropped. Parameters without a gradient count as having zero.
  void step(double lr, double norm);

  /// Moves the balancing biases of one layer against its load, after step(). `counts` int64 [classes]: tokens per class.
  void balance(layers::Parameter& bias, const at::Tensor& counts, int64_t experts);

  /// The full-precision value of a parameter: its master where there is one.
  const at::Tensor& master_of(const layers::Parameter& parameter) const;

  /// All state that a checkpoint must keep, by global name. Shapes are those of the parameters.
  std::map<std::string, at::Tensor> state() const;
  /// Updates done so far, part of AdamW's bias correction; restored together with state().
  int64_t steps_done() const { return steps_done_; }
  void set_steps_done(int64_t steps) { steps_done_ = steps; }
  /// Copies masters into the compute values, after a checkpoint was loaded into state().
  void publish_masters();

 private:
  struct Slot {
    layers::Parameter* parameter;
    at::Tensor master;         // the value itself unless that is narrower
    at::Tensor first, second;  // Muon: momentum and undefined
    bool takes_muon, takes_decay;
  };
  struct Balance {
    at::Tensor first, second;
  };
  void adamw(Slot& slot, double lr, double gradient_scale);
  void muon(double lr, double gradient_scale);

  OptimizerConfig config_;
  std::vector<Slot> slots_;
  std::map<std::string, Balance> balances_;
  int64_t steps_done_ = 0;
};

}  // namespace ingot::optim
