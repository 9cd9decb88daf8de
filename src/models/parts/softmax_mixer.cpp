#include "models/parts/softmax_mixer.h"

#include "base/error.h"
#include "models/decode/attention.h"
#include "models/hugging_face_config.h"
#include "models/parts/biases.h"

namespace ingot::models {

SoftmaxMixer::SoftmaxMixer(const BlockContext& block, int64_t layer, const Options& options) : TokenMixer(block, layer), options_(options) {
  block.require_heads();
  if (options.is_gated) schedule().require_local("gated attention");
  require_one_rank_for_rows();
  if (options.has_sinks && config().draft_block > 0) block.require_causal("attention with sinks");
  if (options.has_sinks) schedule().require_local("attention with sinks");
  if (options.qk_norm == QkNorm::all && schedule().shards_weights())
    throw base::ConfigError(
        "parallel.{} = {}: the {} family norms q and k over the channels of all heads, which one rank must have; parallel.context cuts "
        "the tokens instead",
        schedule().setting(), schedule().ranks(), config().family);
}

void SoftmaxMixer::declare(const std::string& prefix) {
  const auto& c = config();
  const int64_t d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d;
  layers::SoftmaxAttentionWeights w = {
      .heads = schedule().local_heads(c.heads),
      .kv_heads = schedule().local_heads(c.kv_heads),
      .head_dim = d,
      .window = c.window_of(layer_),
      .rotary = rotary_settings(c, layer_),
      .q = &block_.matrix(prefix + "self_attn.q_proj.weight", {q, c.hidden}, block_.cut_rows(q, c.hidden)),
      .k = &block_.matrix(prefix + "self_attn.k_proj.weight", {kv, c.hidden}, block_.cut_rows(kv, c.hidden)),
      .v = &block_.matrix(prefix + "self_attn.v_proj.weight", {kv, c.hidden}, block_.cut_rows(kv, c.hidden)),
      .o = &block_.matrix(prefix + "self_attn.o_proj.weight", {c.hidden, q}, block_.cut_columns(c.hidden, q))};
  if (options_.qk_norm != QkNorm::none) {
    const bool is_of_head = options_.qk_norm == QkNorm::head;
    w.norm_adds_one = options_.norm_weight == NormWeight::zero_centred;
    const double initial = w.norm_adds_one ? 0 : 1;
    w.q_norm = &block_.vector(prefix + "self_attn.q_norm.weight", is_of_head ? d : q, initial);
    w.k_norm = &block_.vector(prefix + "self_attn.k_norm.weight", is_of_head ? d : kv, initial);
    w.norm_eps = c.norm_eps;
    if (schedule().repeats_tokens()) w.repeated = [this](const at::Tensor& weight) { return schedule().repeated(weight); };
  }
  if (c.attention_bias || options_.has_qkv_biases) {
    w.q_bias = &block_.vector(prefix + "self_attn.q_proj.bias", q, 0, block_.cut_vector(q));
    w.k_bias = &block_.vector(prefix + "self_attn.k_proj.bias", kv, 0, block_.cut_vector(kv));
    w.v_bias = &block_.vector(prefix + "self_attn.v_proj.bias", kv, 0, block_.cut_vector(kv));
    if (!options_.has_qkv_biases) out_bias_ = &block_.vector(prefix + "self_attn.o_proj.bias", c.hidden, 0);
  }
  if (options_.is_gated) w.gate = &block_.matrix(prefix + "self_attn.gate_proj.weight", {q, c.hidden}, block_.cut_rows(q, c.hidden));
  if (options_.has_sinks) w.sinks = &block_.vector(prefix + "self_attn.sinks", c.heads, 0, block_.cut_vector(c.heads));
  w.scale = c.softmax_scale;
  w.score_cap = c.score_cap;
  attention_ = layers::SoftmaxAttention(std::move(w));
}

at::Tensor SoftmaxMixer::watch_scores(at::Device device) {
  if (options_.qk_norm != QkNorm::none || config().score_cap > 0) return {};
  return attention_.largest_scores = layers::no_scores_yet(attention_.heads, device);
}

std::vector<layers::RowFactors> SoftmaxMixer::clip_scores(const at::Tensor& gamma) const {
  const auto& a = attention_;
  return layers::clip_heads(gamma, a.kv_heads, a.head_dim, {a.q, a.q_bias}, {a.k, a.k_bias});
}

at::Tensor SoftmaxMixer::mix(const at::Tensor& normed, ForwardContext& context) const {
  return with_bias(schedule().run(attention_, normed, *context.sequences, caches_in(context)), out_bias_);
}

bool SoftmaxMixer::add_decode_steps(decode::Program& program) const {
  return decode::add_softmax_attention(program, attention_, out_bias_, layer_);
}

}  // namespace ingot::models
