#include "models/parts/linear_mixer.h"

#include <cmath>

#include "base/error.h"
#include "layers/linear.h"

namespace ingot::models {

using kernels::FeatureMap;
using layers::LinearVariant;
using layers::Parameter;

LinearMixer::LinearMixer(const BlockContext& block, int64_t layer, const Options& options)
    : TokenMixer(block, layer),
      options_(options),
      variant_(layers::linear_variant_from_name(config().linear_attention)),
      map_(kernels::feature_map_from_name(config().feature_map)) {
  schedule().require_local("linear attention");
  if (!config().bidirectional || variant_ != LinearVariant::basic) block.require_causal("linear attention that decays or corrects");
  if (config().bidirectional && config().short_convolution > 0)
    throw base::ConfigError("model.short_convolution = {}: it sees earlier tokens alone, and model.bidirectional = true; set it to 0",
                            config().short_convolution);
  if (layout().sequence.is_on() && layout().sequence.zigzag)
    throw base::ConfigError(
        "parallel.context_order = zigzag: linear attention passes states from one part of a sequence to the next, so each rank's tokens "
        "must be one part; set it to contiguous, for softmax layers as well");
  if (map_ == FeatureMap::taylor && has_channel_gates())
    throw base::ConfigError("model.feature_map = taylor makes other channels than model.linear_attention = {} has gates for",
                            config().linear_attention);
  if (options_.rotates && config().resolved_linear_key_dim() % 2 != 0)
    throw base::ConfigError("model.linear_key_dim = {}: RoPE turns channels in pairs; make it even", config().resolved_linear_key_dim());
  block.require_heads();
  const int64_t heads = config().resolved_linear_heads(), key_heads = config().resolved_linear_key_heads();
  if (heads % key_heads != 0)
    throw base::ConfigError("model.linear_key_heads = {} does not divide model.linear_heads = {}", key_heads, heads);
  schedule().require_shares(config().linear_heads > 0 ? "linear_heads" : "heads", heads);
  if (config().linear_key_heads > 0) schedule().require_shares("linear_key_heads", key_heads);
}

void LinearMixer::declare(const std::string& layer_prefix) {
  const auto& c = config();
  const std::string prefix = layer_prefix + "linear_attn.";
  const int64_t key_dim = c.resolved_linear_key_dim(), value_dim = c.resolved_linear_value_dim();
  const int64_t heads = c.resolved_linear_heads(), key_heads = c.resolved_linear_key_heads();
  const int64_t keys = key_heads * key_dim, values = heads * value_dim, gates = heads * key_dim;
  using FanIn = BlockContext::FanIn;
  const auto by_rows = [&](const char* name, int64_t rows, int64_t cols, FanIn fan_in = FanIn::grows) {
    return &block_.matrix(prefix + name + ".weight", {rows, cols}, block_.cut_rows(rows, cols), fan_in);
  };
  const auto own = [&](const char* name, int64_t size, double initial) {
    return &block_.vector(prefix + name, size, initial, block_.cut_vector(size));
  };
  attention_ = {.variant = variant_,
                .map = map_,
                .heads = schedule().local_heads(heads),
                .key_heads = schedule().local_heads(key_heads),
                .key_dim = key_dim,
                .value_dim = value_dim,
                .first_head = schedule().share(heads).begin,
                .all_heads = heads,
                .norm_eps = c.norm_eps,
                .shares_norm = options_.shares_norm,
                .scales_queries = options_.scales_queries,
                .has_sigmoid_gate = options_.has_sigmoid_gate,
                .rotary = options_.rotates ? std::optional(layers::RotarySettings{.rotated = key_dim}) : std::nullopt,
                .q = by_rows("q_proj", keys, c.hidden),
                .k = by_rows("k_proj", keys, c.hidden),
                .v = by_rows("v_proj", values, c.hidden),
                .o = &block_.matrix(prefix + "o_proj.weight", {c.hidden, values}, block_.cut_columns(c.hidden, values)),
                .norm = options_.shares_norm ? &block_.vector(prefix + "o_norm.weight", value_dim, 1) : own("o_norm.weight", values, 1)};
  auto& l = attention_;
  if (options_.shares_norm && schedule().repeats_tokens())
    l.repeated = [this](const at::Tensor& weight) { return schedule().repeated(weight); };
  if (c.short_convolution > 0) {
    l.q_convolution = &convolution(prefix + "q_conv1d.weight", keys);
    l.k_convolution = &convolution(prefix + "k_conv1d.weight", keys);
    l.v_convolution = &convolution(prefix + "v_conv1d.weight", values);
  }
  // Decays of exp(-0.05) a token, spread by a factor of 4 or so from head to head.
  const auto rates = [&] { return &spread_vector(prefix + "gate_rate", heads, 1, 0.7); };
  const auto step_bias = [&](const char* name, int64_t size) { return &spread_vector(prefix + name, size, -4, 1); };
  if (has_channel_gates()) {
    l.gate_in = &block_.matrix(prefix + "gate_in_proj.weight", {c.gate_rank, c.hidden});
    l.gate_out = by_rows("gate_out_proj", gates, c.gate_rank, FanIn::fixed);
    l.gate_bias = is_kda() ? step_bias("gate_out_proj.bias", gates) : own("gate_out_proj.bias", gates, 0);
  }
  if (has_scalar_gate()) {
    l.gate = by_rows("gate_proj", heads, c.hidden);
    l.gate_rate = rates();
    l.step_bias = step_bias("step_bias", heads);
  }
  if (is_kda()) l.gate_rate = rates();
  if (corrects()) l.beta = by_rows("beta_proj", heads, c.hidden);
  if (map_ == FeatureMap::rebased) {
    l.query_scale = own("q_map.weight", keys, 1);
    l.query_bias = own("q_map.bias", keys, 0);
    l.key_scale = own("k_map.weight", keys, 1);
    l.key_bias = own("k_map.bias", keys, 0);
  }
  if (!c.linear_output_gate) return;
  const bool is_of_low_rank = c.output_gate_rank > 0;
  l.output_gate = is_of_low_rank ? by_rows("output_gate_proj", values, c.output_gate_rank, FanIn::fixed)
                                 : by_rows("output_gate_proj", values, c.hidden);
  if (options_.has_gate_bias) l.output_gate_bias = own("output_gate_proj.bias", values, 0);
  if (is_of_low_rank) l.output_gate_in = &block_.matrix(prefix + "output_gate_in_proj.weight", {c.output_gate_rank, c.hidden});
}

// Taps of about equal weight, as torch's conv1d begins with.
Parameter& LinearMixer::convolution(const std::string& name, int64_t channels) const {
  const int64_t width = config().short_convolution;
  tensor::Part part;
  if (schedule().shards_weights()) part = {{schedule().share(channels)}, {{0, 1}}, {{0, width}}};
  auto& parameter = block_.convolution(name, {channels, 1, width}, std::move(part));
  parameter.initial = tensor::Initial::normal(1 / std::sqrt(3 * static_cast<double>(width)));
  return parameter;
}

Parameter& LinearMixer::spread_vector(const std::string& name, int64_t size, double mean, double deviation) const {
  auto& parameter = block_.vector(name, size, mean, block_.cut_vector(size));
  parameter.initial = {tensor::Initial::Kind::normal, mean, deviation};
  return parameter;
}

at::Tensor LinearMixer::mix(const at::Tensor& normed, ForwardContext& context) const {
  const auto caches = caches_in(context).members(&LayerCache::linear);
  auto& sequences = *context.sequences;
  // Every rank needs what all heads share of the gates: made between layers, where each token's gradient is whole.
  auto low_rank = attention_.low_rank_of(normed);
  if (low_rank.defined()) low_rank = schedule().enter(low_rank, sequences);
  return schedule().leave(attention_(schedule().enter(normed, sequences), low_rank, sequences, caches));
}

}  // namespace ingot::models
