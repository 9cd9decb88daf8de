// Causal softmax attention of grouped queries over latent or plain heads. Saves q, k, v, the output and one number per
// query and head; the probabilities are recomputed in backward.
// Gradient convention: it has no weights; the gradients of q, k and v are returned to autograd. The cache is for inference.
#pragma once

#include <vector>

#include "device/aten.h"
#include "kernels/attention.h"
#include "layers/caches.h"

namespace ingot::layers {

/// Keys and values of earlier tokens, [batch, length, kv_heads, head_dim]; grows as a generation goes on.
struct KeyValueCache {
  at::Tensor keys, values;
  int64_t length = 0;
  /// In their row, ascending, where other ranks keep the other tokens (parallel/tensor_sequence/decoding.h).
  std::vector<int64_t> positions;
  /// Room for `tokens` in all, kept as `like_keys` and `like_values` [batch, …, kv_heads, head_dim] are.
  void reserve(int64_t tokens, const at::Tensor& like_keys, const at::Tensor& like_values);
  /// Appends this chunk and returns the keys and values of all tokens so far.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& k, const at::Tensor& v);
};

/// q [batch, seq, heads, head_dim], k alike with kv_heads, v [batch, seq, kv_heads, value_dim] -> [batch, seq, heads * value_dim].
/// Scores are as `rule` says; window 0 = unlimited. With caches (inference) earlier tokens are seen too. `sinks` [heads] fp32 (fp64
/// for fp64) or undefined: a score of every query that takes part in the softmax and has no value (gpt-oss); not where a row's tokens lie
/// on several ranks. `largest` [heads] fp32 or wider, or undefined: raised to the largest log-sum-exp of each head's scores; as the sinks.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::ScoreRule& rule, int64_t window,
                     Sequences& sequences, const Caches<KeyValueCache>& caches, const at::Tensor& sinks = {},
                     const at::Tensor& largest = {});

}  // namespace ingot::layers
