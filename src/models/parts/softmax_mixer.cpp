#include "models/parts/softmax_mixer.h"

#include "base/error.h"
#include "layers/tensor_sequence/describe_folded.h"
#include "models/hugging_face_config.h"
#include "models/parts/biases.h"

namespace ingot::models {

SoftmaxMixer::SoftmaxMixer(const BlockContext& block, int64_t layer, QkNorm qk_norm) : TokenMixer(block, layer), qk_norm_(qk_norm) {
  block.require_heads();
  if (qk_norm == QkNorm::all && layout().cuts_weights())
    throw base::ConfigError(
        "parallel.{} = {}: the {} family norms q and k over the channels of all heads, which one rank must have; parallel.context cuts "
        "the tokens instead",
        layout().tensor.is_on() ? "tensor" : "tensor_sequence",
        layout().tensor.is_on() ? layout().tensor.size : layout().tensor_sequence.size, config().family);
}

void SoftmaxMixer::declare(const std::string& prefix) {
  const auto& c = config();
  const int64_t d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d, ranks = layout().tensor.size;
  attention_ = {.heads = c.heads / ranks,
                .kv_heads = c.kv_heads / ranks,
                .head_dim = d,
                .window = c.window_of(layer_),
                .rotary = rotary_settings(c, layer_),
                .q = &block_.matrix(prefix + "self_attn.q_proj.weight", {q, c.hidden}, block_.cut_rows(q, c.hidden)),
                .k = &block_.matrix(prefix + "self_attn.k_proj.weight", {kv, c.hidden}, block_.cut_rows(kv, c.hidden)),
                .v = &block_.matrix(prefix + "self_attn.v_proj.weight", {kv, c.hidden}, block_.cut_rows(kv, c.hidden)),
                .o = &block_.matrix(prefix + "self_attn.o_proj.weight", {c.hidden, q}, block_.cut_columns(c.hidden, q))};
  if (qk_norm_ != QkNorm::none) {
    const bool is_of_head = qk_norm_ == QkNorm::head;
    attention_.q_norm = &block_.vector(prefix + "self_attn.q_norm.weight", is_of_head ? d : q, 1);
    attention_.k_norm = &block_.vector(prefix + "self_attn.k_norm.weight", is_of_head ? d : kv, 1);
    attention_.norm_eps = c.norm_eps;
    if (layout().tensor.is_on() && !layout().tensor.shards_tokens) attention_.repeats_norms = &layout().tensor;
  }
  if (!c.attention_bias) return;
  attention_.q_bias = &block_.vector(prefix + "self_attn.q_proj.bias", q, 0, block_.cut_vector(q));
  attention_.k_bias = &block_.vector(prefix + "self_attn.k_proj.bias", kv, 0, block_.cut_vector(kv));
  attention_.v_bias = &block_.vector(prefix + "self_attn.v_proj.bias", kv, 0, block_.cut_vector(kv));
  out_bias_ = &block_.vector(prefix + "self_attn.o_proj.bias", c.hidden, 0);
}

at::Tensor SoftmaxMixer::mix(const at::Tensor& normed, ForwardContext& context) const {
  auto* cache = context.caches ? &cache_in(context)->key_values : nullptr;
  auto& sequences = *context.sequences;
  const auto& axis = layout().tensor_sequence;
  if (block_.folds(sequences)) return with_bias(attention_.folded(normed, sequences, axis, cache), out_bias_);
  return with_bias(block_.leave(axis.is_on() ? attention_.decoded(normed, sequences, axis, *cache)
                                             : attention_(block_.enter(normed, sequences), sequences, cache)),
                   out_bias_);
}

layers::ActivationId SoftmaxMixer::describe(layers::Workload& work, layers::ActivationId normed) const {
  const auto& c = config();
  if (layout().tensor_sequence.is_on()) return describe_folded(work, normed);
  const int64_t ranks = layout().tensor.size, heads = c.heads / ranks, kv_heads = c.kv_heads / ranks;
  const int64_t d = c.resolved_head_dim(), q = heads * d, kv = kv_heads * d;
  const auto qkv = work.narrow(q + 2 * kv);
  auto packed = describe_linear(work, block_.describe_enter(work, normed, c.hidden), {q, kv, kv}, c.attention_bias);
  if (qk_norm_ != QkNorm::none) {
    const auto in = packed;
    packed = work.narrow(q + 2 * kv);
    work.kernel("rms_norm", {in}, {packed}, {in, work.wide(heads + kv_heads)}, work.tokens() * (heads + kv_heads), d);
  }
  work.kernel("split_and_rotate", {packed}, {qkv}, {});
  const auto mixed = work.narrow(q);
  block_.describe_attention(work, qkv, mixed, heads, kv_heads, layer_);
  return block_.describe_leave(work, describe_linear(work, mixed, {c.hidden}, c.attention_bias));
}

layers::ActivationId SoftmaxMixer::describe_folded(layers::Workload& work, layers::ActivationId normed) const {
  const auto& c = config();
  const auto& folded = layout().tensor_sequence;
  const int64_t ranks = folded.size, d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d;
  const int64_t visits = layers::folded_visits(c.kv_heads, folded), width = (q + 2 * kv) / visits;
  const int64_t matrices = 2 * (q + kv) * c.hidden / ranks, biases = c.attention_bias ? (q + 2 * kv) / ranks : 0;
  const int64_t packed_bytes = work.tokens() * width * work.element_bytes();
  const int64_t biased_bytes = c.attention_bias ? work.tokens() * width * work.wide_bytes() : 0;
  const auto out = work.narrow(c.hidden);
  layers::describe_folded_attention(
      work, normed, out, {.heads = c.heads, .kv_heads = c.kv_heads, .head_dim = d, .window = c.window_of(layer_)},
      {matrices + biases, matrices * work.element_bytes() + biases * work.wide_bytes()},
      {.forward_bytes = packed_bytes + biased_bytes, .backward_bytes = packed_bytes + biased_bytes}, layout().sequence, folded);
  for (const int64_t rows : {q, kv, kv}) work.inner_linear(c.hidden, rows / ranks, ranks).repeated_in_backward = true;
  work.inner_kernel("split_and_rotate", work.tokens(), width, visits).repeated_in_backward = true;
  return c.attention_bias ? describe_bias(work, out) : out;
}

}  // namespace ingot::models
