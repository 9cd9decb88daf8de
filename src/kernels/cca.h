// The token mixing in front of CCA attention (arXiv 2510.04476; ZAYA1, arXiv 2511.17127): two causal convolutions over the latent q and
// k, the q-k mean, normalisation and temperature, RoPE, and the value shift. Differentiable in `packed` and all weights.
//
// Documents: at the first token of a document both convolutions and the value shift see what they would see at the start
// of a sequence: zeros before the first convolution, hence its bias before the second, and a zero delayed value.
#pragma once

#include <tuple>

#include "device/aten.h"
#include "kernels/rope.h"

namespace ingot::kernels {

struct CcaShape {
  int64_t heads, kv_heads, head_dim;
  int64_t current = -1;  // value channels that come from the token itself, the others from the one before; -1: half of them
  int64_t latent() const { return (heads + kv_heads) * head_dim; }
  int64_t values() const { return kv_heads * head_dim; }
  int64_t current_values() const { return current >= 0 ? current : values() / 2; }
  int64_t delayed_values() const { return values() - current_values(); }
};

struct CcaWeights {
  at::Tensor depthwise_weight;  // [latent, 1, 2], tap 0 is the older token
  at::Tensor depthwise_bias;    // [latent]
  at::Tensor grouped_weight;    // [latent, head_dim, 2], one group per head
  at::Tensor grouped_bias;      // [latent]
  at::Tensor temperature;       // [kv_heads]
};

/// What the tokens before this chunk left behind (decoding); undefined tensors mean the start of a sequence.
struct CcaTail {
  at::Tensor latent;         // [batch, 2, latent], the last two inputs of the first convolution
  at::Tensor delayed_value;  // [batch, delayed_values()], the last delayed value projection
};

/// packed [batch, seq, q | k | current value | delayed value] -> q, k, v, each [batch, seq, its heads, head_dim].
/// is_start: bool [batch, seq], true at the first token of each document; undefined when only the sequence's start counts.
std::tuple<at::Tensor, at::Tensor, at::Tensor> cca_mix(const at::Tensor& packed, const CcaShape& shape, const CcaWeights& weights,
                                                       const RotaryTable& table, const at::Tensor& is_start, const CcaTail& tail);

}  // namespace ingot::kernels
