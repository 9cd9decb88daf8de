// The optimizer's element-wise work in one pass over a parameter and its state: fp32 state, an optional bf16 copy of the new
// value. Nothing here records gradients; fp64 and other devices take ATen operations.
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

struct AdamwStep {
  double lr, beta1, beta2, eps, weight_decay, gradient_scale;
  int64_t step;  // 1 for the first
};

/// Decoupled AdamW (Loshchilov and Hutter): master, first and second are updated; value receives the master in its own dtype
/// unless it is the master.
void adamw_update(at::Tensor master, const at::Tensor& grad, at::Tensor first, at::Tensor second, at::Tensor value, const AdamwStep& step);

/// momentum <- mu momentum + scale grad; returns momentum, or with Nesterov scale grad + mu momentum.
at::Tensor momentum_update(at::Tensor momentum, const at::Tensor& grad, double mu, double gradient_scale, bool nesterov);

/// master <- keep master - step direction; value as above.
void apply_direction(at::Tensor master, const at::Tensor& direction, at::Tensor value, double keep, double step);

}  // namespace ingot::kernels
