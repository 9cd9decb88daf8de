// The optimizer: every parameter updated by a rule (optim/update_rule.h), and balancing biases of routers (optim/balancing.h).
//
// It owns fp32 masters of the parameters whose compute dtype is narrower, and the moments (fp64 in fp64 runs), of the slices
// that it was given: all that this rank holds, or a ZeRO rank's share. Every state tensor has a global name,
// "optimizer.<kind>.<parameter>", by which checkpoints know it. One thread at a time; the parameter list must outlive it. The
// optimizers of a job make the same calls.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "device/aten.h"
#include "layers/parameter.h"
#include "optim/balancing.h"
#include "optim/config.h"
#include "optim/update_rule.h"

namespace ingot::optim {

/// Weight decay applies to matrices and convolutions.
bool takes_decay(const layers::Parameter& parameter);

struct GradientNorm {
  double norm = 0;
  std::string first_nonfinite;  // name of the first parameter whose gradient has NaN or Inf; empty if all are finite
};

/// A state tensor's slice on this rank.
struct StateSlice {
  std::string name;                     // of the whole tensor
  tensor::Shape shape;                  // the same
  std::vector<tensor::Region> regions;  // where the elements of `flat` belong
  at::Tensor flat;                      // 1-D, owned by optimizer or model: writing to it restores
  bool is_primary = true;               // this rank is the one to save it
};

class Optimizer {
 public:
  Optimizer(layers::ParameterList& parameters, const OptimizerConfig& config);
  /// Collective over the team.
  Optimizer(layers::ParameterList& parameters, const OptimizerConfig& config, Team team);

  /// Euclidean norm over all gradients of all ranks, of the same bits whoever owns what (kernels/exact_sum.h).
  GradientNorm gradient_norm() const;

  /// One update with gradients scaled by min(1, clip / norm). Afterwards parameters hold the new values in their compute
  /// dtype and the gradients are dropped. Parameters without a gradient count as having zero.
  void step(double lr, double norm);

  /// After step(): multiplies the rows of a trained matrix, or the elements of a vector, by `factors` fp64 [local rows] on the host.
  void scale_rows(const layers::Parameter& parameter, const at::Tensor& factors);

  /// Moves the balancing biases of one layer against its load, after step(). `counts` int64 [classes] on the host: tokens per class.
  void balance(layers::Parameter& bias, const at::Tensor& counts, int64_t experts);

  /// All that a checkpoint must keep: full-precision values of all parameters and buffers, and the moments.
  std::vector<StateSlice> state() const;
  /// Updates done so far, part of AdamW's bias correction; restored together with state().
  int64_t steps_done() const { return steps_done_; }
  void set_steps_done(int64_t steps) { steps_done_ = steps; }
  /// Moments begin at 0 again, and AdamW's count of steps; masters stay.
  void forget_moments();
  /// Copies masters into the compute values, after a checkpoint was loaded into state().
  void publish_masters();
  /// The first of this rank's weights that has NaN or Inf; empty if none.
  std::string first_nonfinite_weight() const;

  /// The masters of the slices that this rank updates, where they are not the value itself; the host may read what lies in its memory.
  std::vector<std::pair<const layers::Parameter*, at::Tensor>> masters() const;
  /// The full-precision value of a parameter that this rank updates all of: its master where there is one.
  at::Tensor master_of(const layers::Parameter& parameter) const;

 private:
  struct Buffer {
    layers::Parameter* parameter;
    BalancingState state;
  };

  layers::ParameterList& parameters_;
  OptimizerConfig config_;
  Team team_;
  UpdateRules rules_;
  StateHome home_;
  std::vector<Slot> slots_;  // where they are when the rules are prepared
  std::vector<MatrixSlot> matrices_;
  void add_matrices();
  std::map<std::string, Buffer> buffers_;
  int64_t steps_done_ = 0;
};

}  // namespace ingot::optim
