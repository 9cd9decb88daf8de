// RMSNorm of queries and keys before RoPE, as Qwen3 and OLMoE have it.
#pragma once

#include "kernels/rope.h"

namespace ingot::kernels {

/// Over each run of as many channels as the weight has: [head_dim], every head on its own, or [heads * head_dim], all of them.
/// Undefined weights: no norm.
struct QkNorm {
  at::Tensor q_weight, k_weight;
  double eps = 0;
};

/// split_and_rotate (kernels/rope.h) of a packed projection whose q and k are normed first. v is a view of `packed`. Differentiable; saves
/// `packed` and one number per run of q and k.
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_norm_and_rotate(const at::Tensor& packed, int64_t heads, int64_t kv_heads,
                                                                     int64_t head_dim, const QkNorm& norm, const RotaryTable& table);

}  // namespace ingot::kernels
