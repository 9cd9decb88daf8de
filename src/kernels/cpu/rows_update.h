// Updates of parameters. Rows have one element.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

struct AdamwProblem {
  int64_t rows;
  float* master;
  const float* grad;
  float *first, *second;               // moments, or
  uint16_t *bf16_first, *bf16_second;  // those in bf16, rounded stochastically
  uint32_t rounding_key;
  uint16_t* narrow;  // bf16 copy of the new value, or null
  double lr, beta1, beta2, eps, decay, gradient_scale, correction1, correction2;
};
INGOT_ROW_KERNEL(adamw, const AdamwProblem&, int64_t begin, int64_t end);

/// momentum = mu * momentum + scale * grad; direction = nesterov ? scale * grad + mu * momentum : momentum.
struct MomentumProblem {
  int64_t rows;
  float* momentum;
  uint16_t* bf16_momentum;  // in its place, rounded stochastically; not on GPUs
  uint32_t rounding_key;
  const float* grad;
  float* direction;
  double mu, gradient_scale;
  bool nesterov;
};
INGOT_ROW_KERNEL(momentum, const MomentumProblem&, int64_t begin, int64_t end);

/// master = master * keep - step * direction.
struct ApplyProblem {
  int64_t rows;
  float* master;
  const float* direction;
  uint16_t* narrow;
  double keep, step;
};
INGOT_ROW_KERNEL(apply, const ApplyProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
