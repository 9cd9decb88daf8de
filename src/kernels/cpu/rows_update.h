// Updates of parameters, of many in one problem: a row is a chunk of one of them. A GPU's kernel is handed the whole problem, for which a
// launch has 4 KiB.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

struct AdamwProblem {
  static constexpr int kMost = 48;
  static constexpr int64_t kChunk = 16384;
  struct Tensor {
    int64_t elements, first_chunk;
    float* master;
    const float* grad;
    void *first, *second;  // moments: fp32, or bf16, rounded stochastically
    uint16_t* narrow;      // bf16 copy of the new value, or null
    float shrink, step;    // 1 - lr * decay, and lr / (1 - beta1^steps)
    uint32_t rounding_key;
    bool has_bf16_moments;
  };
  int64_t rows, tensors;
  float beta1, rest1, beta2, rest2, eps, gradient_scale, inverse2;  // rest: 1 - beta; inverse2: 1 / (1 - beta2^steps)
  Tensor of[kMost];
};
INGOT_ROW_KERNEL(adamw, const AdamwProblem&, int64_t begin, int64_t end);

/// momentum = mu * momentum + scale * grad; direction = nesterov ? scale * grad + mu * momentum : momentum.
struct MomentumProblem {
  static constexpr int kMost = 64;
  static constexpr int64_t kChunk = 16384;
  struct Tensor {
    int64_t elements, first_chunk;
    void* momentum;  // fp32, or bf16, rounded stochastically
    const float* grad;
    float* direction;
    uint32_t rounding_key;
    bool is_bf16;
  };
  int64_t rows, tensors;
  float mu, gradient_scale;
  bool nesterov;
  Tensor of[kMost];
};
INGOT_ROW_KERNEL(momentum, const MomentumProblem&, int64_t begin, int64_t end);

/// master = master * keep - step * direction.
struct ApplyProblem {
  static constexpr int kMost = 64;
  static constexpr int64_t kChunk = 16384;
  struct Tensor {
    int64_t elements, first_chunk;
    float* master;
    const float* direction;
    uint16_t* narrow;  // as above
    float keep, step;
  };
  int64_t rows, tensors;
  Tensor of[kMost];
};
INGOT_ROW_KERNEL(apply, const ApplyProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
