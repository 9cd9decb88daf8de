// The optimizer's element-wise work in one pass over parameters and their state, with an optional bf16 copy of the new value: of a list of
// parameters, some dozens of which are one launch. Masters are fp32; moments, too, or bf16, which are rounded stochastically with a key
// (kernels/stochastic_rounding.h) after the update has taken them in fp32. Nothing here records gradients; fp64, and GPUs whose library
// has no kernels, take ATen operations. Tensors of a list are on one device, contiguous, and of as many elements each as its master.
#pragma once

#include <vector>

#include "device/aten.h"

namespace ingot::kernels {

inline constexpr int64_t kAdamwTensors = 48;  // at most, in one launch

struct AdamwStep {
  double beta1, beta2, eps, gradient_scale;
  int64_t step;  // 1 for the first
};
struct AdamwTensors {
  at::Tensor master, grad, first, second, value;
  double lr, weight_decay;
  uint32_t rounding_key = 0;  // of the first moment; the second's is ~rounding_key
};

/// Decoupled AdamW (Loshchilov and Hutter): masters and moments are updated; `value` receives the master in its own dtype unless it is the
/// master.
void adamw_update(const std::vector<AdamwTensors>& all, const AdamwStep& step);

struct MomentumStep {
  double mu, gradient_scale;
  bool nesterov;
};
struct MomentumTensors {
  at::Tensor momentum, grad;
  uint32_t rounding_key = 0;
};

/// momentum <- mu momentum + scale grad; returns of each the momentum, or with Nesterov scale grad + mu momentum.
std::vector<at::Tensor> momentum_update(const std::vector<MomentumTensors>& all, const MomentumStep& step);

struct DirectedTensors {
  at::Tensor master, direction, value;
  double keep, step;
};

/// master <- keep master - step direction; value as above.
void apply_directions(const std::vector<DirectedTensors>& all);

}  // namespace ingot::kernels
