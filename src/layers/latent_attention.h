// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434, section 2.1): queries, keys and values are made of latents, a low-rank
// projection each; a few channels of every query, and one key for all heads beside the latent, carry the position.
// Gradient convention: as SoftmaxAttention; what it takes gets its gradient from autograd.
#pragma once

#include "layers/parameter.h"
#include "layers/schedulable.h"
#include "layers/sequences.h"

namespace ingot::layers {

struct LatentAttention {
  int64_t heads = 0;  // of the weights that are here
  // Channels of a head: of queries and keys, the first rope_dim of which rotate; of values, at most head_dim.
  int64_t head_dim = 0, rope_dim = 0, value_dim = 0;
  int64_t window = 0;
  RotarySettings rotary{};
  double scale = 1;         // of scores
  Parameter* q = nullptr;   // [heads * head_dim, query rank, or hidden], each head's rotating channels first
  Parameter* kv = nullptr;  // [heads * (head_dim - rope_dim + value_dim), kv rank], each head's key first
  Parameter* o = nullptr;   // [hidden, heads * value_dim]

  at::Tensor largest_scores{};  // [heads], see attention(); undefined: nobody asks

  /// query [batch, seq, columns of q] and latent [batch, seq, kv rank], both normed; key [batch, seq, rope_dim], before RoPE
  /// -> [batch, seq, hidden]: the part of the sum of the heads that are here.
  at::Tensor operator()(const at::Tensor& query, const at::Tensor& latent, const at::Tensor& key, Sequences& sequences,
                        const Caches<AttentionCache>& caches) const;
};

}  // namespace ingot::layers
