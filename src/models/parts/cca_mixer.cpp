#include "models/parts/cca_mixer.h"

#include <algorithm>

#include "base/error.h"
#include "models/decode/cca.h"
#include "models/hugging_face_config.h"

namespace ingot::models {

CcaMixer::CcaMixer(const BlockContext& block, int64_t layer) : TokenMixer(block, layer) {
  const auto& c = config();
  if (c.attention_bias) throw base::ConfigError("model.attention_bias = true: CCA has no such biases");
  if (c.kv_heads * c.resolved_head_dim() % 2 != 0)
    throw base::ConfigError("model.kv_heads * head_dim = {} must be even: half of the value channels come from the previous token",
                            c.kv_heads * c.resolved_head_dim());
  if (c.bidirectional) block.require_causal("CCA");
  block.require_uncapped("CCA");
  block.require_heads();
  schedule().require_shares("kv_heads", c.kv_heads);
}

CcaMixer::ValueRows CcaMixer::value_rows() const {
  const int64_t values = config().kv_heads * config().resolved_head_dim();
  const auto own = schedule().share(values);
  const auto within = [&](int64_t from) {
    return tensor::Range{std::clamp<int64_t>(own.begin - from, 0, values / 2), std::clamp<int64_t>(own.end - from, 0, values / 2)};
  };
  return {within(0), within(values / 2)};
}

tensor::Part CcaMixer::latent_part(const tensor::Shape& rest) const {
  if (!schedule().shards_weights()) return {};
  const int64_t d = config().resolved_head_dim(), q = config().heads * d;
  const auto keys = schedule().share(config().kv_heads * d);
  tensor::Part part = {{schedule().share(q), {q + keys.begin, q + keys.end}}};
  for (const int64_t n : rest) part.push_back({{0, n}});
  return part;
}

void CcaMixer::declare(const std::string& prefix) {
  const auto& c = config();
  const int64_t d = c.resolved_head_dim(), q = c.heads * d, kv = c.kv_heads * d;
  const std::string mix = prefix + "self_attn.qkv_proj.";
  const auto values = value_rows();
  const auto value_part = [&](const tensor::Range& rows) -> tensor::Part {
    if (!schedule().shards_weights()) return {};
    return {{rows}, {{0, c.hidden}}};
  };
  const int64_t local_kv = schedule().local_heads(c.kv_heads);
  attention_ =
      layers::CcaAttention({.shape = {schedule().local_heads(c.heads), local_kv, d, local_kv < c.kv_heads ? values.current.size() : kv / 2},
                            .window = c.window_of(layer_),
                            .rotary = rotary_settings(c, layer_),
                            .q = &block_.matrix(mix + "q_proj.weight", {q, c.hidden}, block_.cut_rows(q, c.hidden)),
                            .k = &block_.matrix(mix + "k_proj.weight", {kv, c.hidden}, block_.cut_rows(kv, c.hidden)),
                            .current_value = &block_.matrix(mix + "v_proj_current.weight", {kv / 2, c.hidden}, value_part(values.current)),
                            .delayed_value = &block_.matrix(mix + "v_proj_delayed.weight", {kv / 2, c.hidden}, value_part(values.delayed)),
                            .depthwise_weight = &block_.convolution(mix + "conv_qk_depthwise.weight", {q + kv, 1, 2}, latent_part({1, 2})),
                            .depthwise_bias = &block_.vector(mix + "conv_qk_depthwise.bias", q + kv, 0, latent_part({})),
                            .grouped_weight = &block_.convolution(mix + "conv_qk_grouped.weight", {q + kv, d, 2}, latent_part({d, 2})),
                            .grouped_bias = &block_.vector(mix + "conv_qk_grouped.bias", q + kv, 0, latent_part({})),
                            // 1, not Hugging Face's 0, with which keys vanish and q and k get no gradient.
                            .temperature = &block_.vector(prefix + "self_attn.qk_norm.temp", c.kv_heads, 1, block_.cut_vector(c.kv_heads)),
                            .o = &block_.matrix(prefix + "self_attn.o_proj.weight", {c.hidden, q}, block_.cut_columns(c.hidden, q))});
}

at::Tensor CcaMixer::mix(const at::Tensor& normed, ForwardContext& context) const {
  return schedule().run(attention_, normed, *context.sequences, caches_in(context));
}

// Both convolutions have two taps.
double CcaMixer::mix_flops(int64_t latents) const {
  return static_cast<double>(latents) * 2 * 2 * static_cast<double>(config().resolved_head_dim() + 1);
}

bool CcaMixer::add_decode_steps(decode::Program& program) const { return decode::add_cca_attention(program, attention_, layer_); }

}  // namespace ingot::models
