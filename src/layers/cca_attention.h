// Compressed convolutional attention, the attention half of a ZAYA1 block (ZAYA1, arXiv 2511.17127).
// Gradient convention: the projections q, k, both values and o get theirs in Parameter::grad (layers/linear.h); both
// convolutions, their biases and the temperature from autograd.
#pragma once

#include "kernels/cca.h"
#include "layers/attention.h"
#include "layers/parameter.h"
#include "layers/tensor_sequence/axis.h"

namespace ingot::layers {

/// What decoding must remember of earlier tokens.
struct CcaCache {
  KeyValueCache key_values;
  kernels::CcaTail tail;  // kept in fp32
};

struct CcaAttention {
  kernels::CcaShape shape;
  int64_t window;  // 0 = unlimited
  RotarySettings rotary;
  Parameter *q, *k;                          // [heads * head_dim, hidden], [kv_heads * head_dim, hidden]
  Parameter *current_value, *delayed_value;  // each [kv_heads * head_dim / 2, hidden]
  Parameter *depthwise_weight, *depthwise_bias, *grouped_weight, *grouped_bias, *temperature;
  Parameter* o;  // [hidden, heads * head_dim]

  /// x [batch, seq, hidden], normed -> [batch, seq, hidden]
  at::Tensor operator()(const at::Tensor& x, Sequences& sequences, CcaCache* cache) const;
  /// x [batch, own tokens, hidden], normed -> the same, where tokens and heads' weights are spread over the ranks of `axis`, which divide
  /// the kv heads: `shape` is that of all ranks, the parameters are this rank's parts.
  /// With a cache (inference) its tokens' keys and values are kept there, and the tail of the own heads.
  at::Tensor folded(const at::Tensor& x, Sequences& sequences, const TensorSequenceAxis& axis, CcaCache* cache = nullptr) const;
  /// One new token of each row behind those in the cache, x [batch, 1, hidden], the same on all ranks -> this rank's part of the sum
  /// (layers/tensor_sequence/decoding.h).
  at::Tensor decoded(const at::Tensor& x, Sequences& sequences, const TensorSequenceAxis& axis, CcaCache& cache) const;

 private:
  /// The heads of one rank of a tensor_sequence axis.
  kernels::CcaShape shape_of(int owner, int ranks) const;
  kernels::CcaWeights mixing() const;
};

}  // namespace ingot::layers
