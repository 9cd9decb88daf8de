// How layers that mix tokens run where a row's tokens lie on several ranks. Layers ask it in place of their local function; what is
// behind it (ring, all-gather, Ulysses; LASP-2, LASP-1, ZeCO) is in parallel/context. Each function is differentiable and gives what the
// local one gives for whole rows, up to the order of additions.
#pragma once

#include "device/aten.h"
#include "kernels/attention.h"
#include "kernels/linear_attention.h"
#include "layers/token_order.h"

namespace ingot::layers {

class Sequences;

class ContextSchedule {
 public:
  virtual ~ContextSchedule() = default;

  /// Which tokens this rank has.
  virtual const TokenOrder& order() const = 0;
  /// Causal attention: q [batch, chunks, chunk length, heads, head_dim], k and v alike with kv_heads, in any strides of the first three
  /// dims -> [batch, own tokens, heads, head_dim]. Scores are as `rule` says; window 0 = unlimited. `sinks` [heads], or undefined
  /// (attention_sinks.h); the gradient that a rank gives them is that of its own tokens.
  virtual at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                               const kernels::ScoreRule& rule, int64_t window, const Sequences& sequences) const = 0;
  /// q, k [batch, own tokens, heads, key_dim], … as kernels::LinearAttentionInputs has them -> [batch, own tokens, heads, value_dim] in the
  /// dtype of v. is_start is taken from `sequences`.
  virtual at::Tensor linear_attention(const kernels::LinearAttentionInputs& in, const Sequences& sequences) const = 0;
  /// Every token sees all tokens of its row, which is one document: q, k, v as above -> likewise.
  virtual at::Tensor bidirectional_linear_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const Sequences& sequences) const = 0;
  /// x [batch, own tokens, width] -> [batch * chunks, halo + chunk length, width]: each chunk behind the last `halo` tokens of the one
  /// before it (zeros before the first). Chunks hold at least `halo` tokens.
  virtual at::Tensor with_halo(const at::Tensor& x, int64_t halo) const = 0;
};

}  // namespace ingot::layers
