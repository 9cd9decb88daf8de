// Causal softmax attention of grouped queries over latent or plain heads. Saves q, k, v, the output and one number per
// query and head; the probabilities are recomputed in backward.
// Gradient convention: it has no weights; the gradients of q, k and v are returned to autograd. The cache is for inference.
#pragma once

#include <vector>

#include "device/aten.h"
#include "kernels/attention.h"
#include "layers/caches.h"
#include "layers/key_value_cache.h"

namespace ingot::layers {

/// q [batch, seq, heads, head_dim], k alike with kv_heads, v [batch, seq, kv_heads, value_dim] -> [batch, seq, heads * value_dim].
/// Scores are as `rule` says; window 0 = unlimited. With caches (inference) earlier tokens are seen too. `sinks` [heads] fp32 (fp64
/// for fp64) or undefined: a score of every query that takes part in the softmax and has no value (gpt-oss); not where a row's tokens lie
/// on several ranks. `largest` [heads] fp32 or wider, or undefined: raised to the largest log-sum-exp of each head's scores; as the sinks.
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::ScoreRule& rule, int64_t window,
                     Sequences& sequences, const Caches<KeyValueCache>& caches, const at::Tensor& sinks = {},
                     const at::Tensor& largest = {});

}  // namespace ingot::layers
