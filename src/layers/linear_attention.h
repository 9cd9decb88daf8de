// The linear-attention half of a block: projections of q, k, v and of what the variant's gates need, short convolutions, a feature
// map, the recurrence of kernels/linear_attention.h, a norm for each head, an output gate, the output projection.
// Gradient convention: projections get theirs in Parameter::grad (layers/linear.h); convolutions, norms and the vectors of the
// gates from autograd. The cache is for inference.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "device/aten.h"
#include "kernels/feature_map.h"
#include "kernels/linear_attention.h"
#include "layers/caches.h"
#include "layers/parameter.h"

namespace ingot::layers {

/// What decoding must remember of earlier tokens: of one size however many they are.
struct LinearAttentionCache {
  at::Tensor state;  // [batch, heads, key_dim, value_dim]
  at::Tensor tail;   // [batch, width - 1, q | k | v], inputs of the convolutions
};

enum class LinearVariant { basic, retention, scalar_gate, diagonal_gate, delta, gated_delta, kda, retnet };
LinearVariant linear_variant_from_name(const std::string& name);
const std::vector<std::string>& linear_variant_names();

/// Mixes the tokens of each document: [batch, seq, heads, value_dim]. Saves the inputs and one state per few thousand tokens. Cached
/// `states` (inference) go on from earlier tokens. Over a context axis its schedule does.
at::Tensor linear_attention(const kernels::LinearAttentionInputs& in, Sequences& sequences, const Caches<at::Tensor>& states);

/// The convolution of x [batch, seq, channels] with weight [channels, 1, width]; `tails` as above. Over a context axis each rank
/// fetches the width - 1 tokens before its own (ContextSchedule::with_halo).
at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, Sequences& sequences, const Caches<at::Tensor>& tails);

struct LinearAttention {
  LinearVariant variant;
  kernels::FeatureMap map;
  int64_t heads, key_heads, key_dim,
      value_dim;                  // of this rank; a key head serves heads / key_heads neighbours; key_dim: before the feature map
  int64_t first_head, all_heads;  // of the model, for the slopes of retention and retnet
  double norm_eps;
  bool shares_norm = false;                                 // all heads do
  bool scales_queries = false;                              // by 1 / sqrt(key_dim), as fla does
  bool has_sigmoid_gate = false;                            // the output gate is one, not SiLU
  std::optional<RotarySettings> rotary{};                   // of q and k, behind the feature map
  std::function<at::Tensor(const at::Tensor&)> repeated{};  // of a norm that all heads share: see SoftmaxAttentionWeights

  Parameter *q, *k, *v, *o;                                                                // [its heads * its dim, hidden], o transposed
  Parameter *q_convolution = nullptr, *k_convolution = nullptr, *v_convolution = nullptr;  // [heads * its dim, 1, width]
  Parameter *gate_in = nullptr, *gate_out = nullptr, *gate_bias = nullptr;                 // diagonal: [rank, hidden], [q, rank], [q]
  Parameter *gate = nullptr, *gate_rate = nullptr, *step_bias = nullptr;                   // scalar: [heads, hidden], [heads], [heads]
                                                                                           // kda: gate_rate and those of diagonal
  Parameter* beta = nullptr;                                                               // [heads, hidden]
  Parameter *query_scale = nullptr, *query_bias = nullptr, *key_scale = nullptr, *key_bias = nullptr;  // rebased: [q]
  Parameter *norm, *output_gate = nullptr;  // [v], or [value_dim] for all heads; [v, hidden], or [v, rank] where it is of low rank
  Parameter *output_gate_in = nullptr, *output_gate_bias = nullptr;  // [rank, hidden]; [v]

  /// What all heads share of x, whose projections are of low rank: x through gate_in and output_gate_in, side by side; undefined when there
  /// is neither.
  at::Tensor low_rank_of(const at::Tensor& x) const;
  /// x [batch, seq, hidden], normed -> [batch, seq, hidden]; of some of the heads: their part of the sum. `low_rank`: as above.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& low_rank, Sequences& sequences,
                        const Caches<LinearAttentionCache>& caches) const;

  /// Logarithmic gates as kernels::LinearAttentionInputs has them, fp32 or wider: retention -2^(-8 (h + 1) / heads) (the slopes of
  /// ALiBi, as TransNormerLLM has them); retnet log(1 - 2^(-5 - h)) (RetNet, arXiv 2307.08621); scalar -exp(rate) softplus(x + bias)
  /// (Mamba-2); diagonal log_sigmoid(x + bias) / 16 (GLA); kda as scalar, with a rate per head and the rest per channel (Kimi Linear, arXiv
  /// 2510.26692).
  at::Tensor log_gate(const at::Tensor& x, const at::Tensor& low_rank) const;
};

}  // namespace ingot::layers
