// The attention half of a Llama block: projections, RMSNorm of q and k where a model has them, RoPE, grouped-query attention, output
// projection.
// Gradient convention: q, k, v and o get theirs in Parameter::grad (layers/linear.h), biases and norms from autograd.
#pragma once

#include "layers/attention.h"
#include "layers/parameter.h"
#include "layers/tensor_axis.h"
#include "layers/tensor_sequence/axis.h"

namespace ingot::layers {

struct SoftmaxAttention {
  int64_t heads, kv_heads, head_dim, window;  // window 0 = unlimited
  RotarySettings rotary;
  Parameter *q, *k, *v, *o;                                           // [heads * head_dim, hidden], …, [hidden, heads * head_dim]
  Parameter *q_bias = nullptr, *k_bias = nullptr, *v_bias = nullptr;  // all or none
  /// Of q and k before RoPE, over each run of as many channels as the weight has: [head_dim], every head on its own, or all heads'.
  Parameter *q_norm = nullptr, *k_norm = nullptr;  // both or none
  double norm_eps = 0;
  /// Ranks that have norms of a head whole and use them for their own heads, with the same tokens between layers; null = none.
  const TensorAxis* repeats_norms = nullptr;

  /// x [batch, seq, hidden], normed -> [batch, seq, hidden]; of some of the heads: their part of the sum
  at::Tensor operator()(const at::Tensor& x, Sequences& sequences, KeyValueCache* cache) const;
  /// x [batch, own tokens, hidden], normed -> the same, where tokens and heads' weights are spread over the ranks of `axis`: `heads` and
  /// `kv_heads` are those of all ranks, the parameters this rank's parts. With a cache (inference) its tokens' keys and values are kept
  /// there.
  at::Tensor folded(const at::Tensor& x, Sequences& sequences, const TensorSequenceAxis& axis, KeyValueCache* cache = nullptr) const;
  /// One new token of each row behind those in the cache, x [batch, 1, hidden], the same on all ranks -> this rank's part of the sum
  /// (layers/tensor_sequence/decoding.h).
  at::Tensor decoded(const at::Tensor& x, Sequences& sequences, const TensorSequenceAxis& axis, KeyValueCache& cache) const;

 private:
  /// Packed q, k and v of this many heads: the first two normed.
  at::Tensor normed(const at::Tensor& packed, int64_t own_heads, int64_t own_kv_heads, const at::Tensor& q_weight,
                    const at::Tensor& k_weight) const;
  at::Tensor norm_weight(const Parameter& norm) const;
};

}  // namespace ingot::layers
