// The optimizer's element-wise work in one pass over a parameter and its state, with an optional bf16 copy of the new value. Masters are
// fp32; moments, too, or bf16, which are rounded stochastically with a key (kernels/stochastic_rounding.h) after the update has taken
// them in fp32. Nothing here records gradients; fp64 and other devices take ATen operations.
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

struct AdamwStep {
  double lr, beta1, beta2, eps, weight_decay, gradient_scale;
  int64_t step;               // 1 for the first
  uint32_t rounding_key = 0;  // of the first moment; the second's is ~rounding_key
};

/// Decoupled AdamW (Loshchilov and Hutter): master, first and second are updated; value receives the master in its own dtype
/// unless it is the master.
void adamw_update(at::Tensor master, const at::Tensor& grad, at::Tensor first, at::Tensor second, at::Tensor value, const AdamwStep& step);

struct MomentumStep {
  double mu, gradient_scale;
  bool nesterov;
  uint32_t rounding_key = 0;
};

/// momentum <- mu momentum + scale grad; returns momentum, or with Nesterov scale grad + mu momentum.
at::Tensor momentum_update(at::Tensor momentum, const at::Tensor& grad, const MomentumStep& step);

/// master <- keep master - step direction; value as above.
void apply_direction(at::Tensor master, const at::Tensor& direction, at::Tensor value, double keep, double step);

}  // namespace ingot::kernels
