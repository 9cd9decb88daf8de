// Llama's blocks with linear attention in some of the layers and softmax attention in the others ("Linear-Llama" and its hybrids,
// LASP-2H: facts lasp2 §5). A linear layer has as many heads for keys and values as for queries, and no RoPE.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "layers/linear.h"
#include "models/hugging_face_config.h"
#include "models/llama_like.h"

namespace ingot::models {
namespace {

using kernels::FeatureMap;
using layers::LinearVariant;
using layers::Parameter;

class LinearLlama final : public LlamaLike {
 public:
  LinearLlama(const ModelConfig& config, const Layout& layout)
      : LlamaLike(config, layout), softmax_(static_cast<size_t>(config.layers)), linear_(static_cast<size_t>(config.layers)) {
    check(config, layout);
    variant_ = layers::linear_variant_from_name(config.linear_attention);
    map_ = kernels::feature_map_from_name(config.feature_map);
    if (map_ == FeatureMap::taylor && variant_ == LinearVariant::diagonal_gate)
      throw base::ConfigError("model.feature_map = taylor makes other channels than model.linear_attention = diagonal_gate has gates for");
    declare();
  }

  void set_rope_base(double base) override {
    config_.rope_base = base;
    for (int64_t layer = 0; layer < config_.layers; ++layer)
      if (!config_.is_linear(layer) && !config_.is_sliding(layer)) softmax_[static_cast<size_t>(layer)].attention.rotary.base = base;
  }

 protected:
  void declare_mixing(int64_t layer, const std::string& prefix) override {
    if (config_.is_linear(layer)) linear_[static_cast<size_t>(layer)] = declare_linear(prefix + "linear_attn.");
    else softmax_[static_cast<size_t>(layer)] = declare_softmax(layer, prefix);
  }

  at::Tensor mix(int64_t layer, const at::Tensor& normed, ForwardContext& context) override {
    if (!config_.is_linear(layer)) return mix_by(softmax_[static_cast<size_t>(layer)], layer, normed, context);
    const auto& linear = linear_[static_cast<size_t>(layer)];
    auto* cache = context.caches ? &(*context.caches)[static_cast<size_t>(layer)].linear : nullptr;
    // Every rank needs what all heads share of the gates: made between layers, where each token's gradient is whole.
    const auto low_rank = linear.gate_in ? enter(layers::linear(normed, {linear.gate_in}), context) : at::Tensor();
    return leave(linear(enter(normed, context), low_rank, *context.sequences, cache));
  }

  layers::ActivationId describe_mixing(int64_t layer, layers::Workload& work, layers::ActivationId normed) const override {
    return config_.is_linear(layer) ? describe_linear_attention(work, normed) : describe_softmax(layer, work, normed);
  }

 private:
  static void check(const ModelConfig& c, const Layout& layout) {
    if (c.layer_pattern.empty() || c.layer_pattern.find_first_not_of("LN") != std::string::npos)
      throw base::ConfigError("model.layer_pattern = '{}'; it is made of L (linear) and N (softmax), as in LLLN", c.layer_pattern);
    if (c.layer_pattern.find('L') == std::string::npos) return;
    if (layout.tensor_sequence.is_on())
      throw base::ConfigError("parallel.tensor_sequence = {}: linear attention has no schedule over that axis; parallel.context has",
                              layout.tensor_sequence.size);
    if (layout.sequence.is_on() && layout.sequence.zigzag)
      throw base::ConfigError(
          "parallel.context_order = zigzag: linear attention passes states from one part of a sequence to the next, so each rank's tokens "
          "must be one part; set it to contiguous, for softmax layers as well");
  }

  layers::LinearAttention declare_linear(const std::string& prefix) {
    const auto& c = config_;
    const int64_t ranks = layout_.tensor.size, key_dim = c.resolved_linear_key_dim(), value_dim = c.resolved_linear_value_dim();
    const int64_t keys = c.heads * key_dim, values = c.heads * value_dim;
    const auto by_rows = [&](const char* name, int64_t rows, int64_t cols) {
      return &matrix(prefix + name + ".weight", {rows, cols}, cut_rows(rows, cols));
    };
    const auto own = [&](const char* name, int64_t size, double initial) {
      return &vector(prefix + name, size, initial, cut_vector(size));
    };
    require_shares("heads", c.heads);
    layers::LinearAttention l{.variant = variant_,
                              .map = map_,
                              .heads = c.heads / ranks,
                              .key_dim = key_dim,
                              .value_dim = value_dim,
                              .first_head = layout_.tensor.share(c.heads).begin,
                              .all_heads = c.heads,
                              .norm_eps = c.norm_eps,
                              .q = by_rows("q_proj", keys, c.hidden),
                              .k = by_rows("k_proj", keys, c.hidden),
                              .v = by_rows("v_proj", values, c.hidden),
                              .o = &matrix(prefix + "o_proj.weight", {c.hidden, values}, cut_columns(c.hidden, values)),
                              .norm = own("o_norm.weight", values, 1)};
    if (c.short_convolution > 0) {
      l.q_convolution = &convolution(prefix + "q_conv1d.weight", keys);
      l.k_convolution = &convolution(prefix + "k_conv1d.weight", keys);
      l.v_convolution = &convolution(prefix + "v_conv1d.weight", values);
    }
    if (variant_ == LinearVariant::diagonal_gate) {
      l.gate_in = &matrix(prefix + "gate_in_proj.weight", {c.gate_rank, c.hidden});
      l.gate_out = by_rows("gate_out_proj", keys, c.gate_rank);
      l.gate_bias = own("gate_out_proj.bias", keys, 0);
    }
    if (variant_ == LinearVariant::scalar_gate || variant_ == LinearVariant::gated_delta) {
      l.gate = by_rows("gate_proj", c.heads, c.hidden);
      // Decays of exp(-0.05) a token, spread by a factor of 4 or so from head to head.
      l.gate_rate = &spread_vector(prefix + "gate_rate", c.heads, 1, 0.7);
      l.step_bias = &spread_vector(prefix + "step_bias", c.heads, -4, 1);
    }
    if (variant_ == LinearVariant::delta || variant_ == LinearVariant::gated_delta) l.beta = by_rows("beta_proj", c.heads, c.hidden);
    if (map_ == FeatureMap::rebased) {
      l.query_scale = own("q_map.weight", keys, 1);
      l.query_bias = own("q_map.bias", keys, 0);
      l.key_scale = own("k_map.weight", keys, 1);
      l.key_bias = own("k_map.bias", keys, 0);
    }
    if (c.linear_output_gate) l.output_gate = by_rows("output_gate_proj", values, c.hidden);
    return l;
  }

  // Taps of about equal weight, as torch's conv1d begins with.
  Parameter& convolution(const std::string& name, int64_t channels) {
    const int64_t width = config_.short_convolution;
    tensor::Part part;
    if (layout_.tensor.is_on()) part = {{layout_.tensor.share(channels)}, {{0, 1}}, {{0, width}}};
    auto& parameter = matrix(name, {channels, 1, width}, std::move(part));
    parameter.kind = Parameter::Kind::convolution;
    parameter.keeps_fp32 = true;
    parameter.initial = tensor::Initial::normal(1 / std::sqrt(3 * static_cast<double>(width)));
    return parameter;
  }

  Parameter& spread_vector(const std::string& name, int64_t size, double mean, double deviation) {
    auto& parameter = vector(name, size, mean, cut_vector(size));
    parameter.initial = {tensor::Initial::Kind::normal, mean, deviation};
    return parameter;
  }

  layers::ActivationId describe_linear_attention(layers::Workload& work, layers::ActivationId normed) const {
    const auto& c = config_;
    const int64_t heads = c.heads / layout_.tensor.size, key_dim = c.resolved_linear_key_dim(), value_dim = c.resolved_linear_value_dim();
    const int64_t keys = heads * key_dim, values = heads * value_dim, tokens = work.tokens();
    const int64_t features = heads * kernels::feature_dim(map_, key_dim);
    std::vector<layers::ActivationId> read;
    if (variant_ == LinearVariant::diagonal_gate) {
      const auto low_rank = work.narrow(c.gate_rank, rows_between(work));
      work.linear(normed, low_rank);
      const auto gate = work.narrow(keys), log_gate = work.wide(keys);
      work.linear(describe_enter(work, low_rank, c.gate_rank), gate);
      work.kernel("gates", {gate}, {log_gate}, {gate, log_gate});
      read.push_back(log_gate);
    }
    const auto x = describe_enter(work, normed, c.hidden);
    auto packed = work.narrow(2 * keys + values);
    work.linear(x, packed, {keys, keys, values});
    if (c.short_convolution > 0) {
      const auto mixed = work.narrow(2 * keys + values);
      work.kernel("short_convolution", {packed}, {mixed}, {packed});
      packed = mixed;
    }
    auto mapped = packed;
    if (map_ != FeatureMap::identity) {
      mapped = work.narrow(2 * features + values);
      work.kernel("feature_map", {packed}, {mapped}, {packed});
    }
    const auto per_head = [&] {
      const auto product = work.narrow(heads), gate = work.wide(heads);
      work.linear(x, product);
      work.kernel("gates", {product}, {gate}, {product, gate});
      read.push_back(gate);
    };
    if (variant_ == LinearVariant::scalar_gate || variant_ == LinearVariant::gated_delta) per_head();
    const bool corrects = variant_ == LinearVariant::delta || variant_ == LinearVariant::gated_delta;
    if (corrects) per_head();
    read.insert(read.begin(), mapped);
    const auto out = work.narrow(values);
    const bool by_channel = variant_ == LinearVariant::diagonal_gate;
    const char* const kernel = corrects ? "linear_attention_delta" : by_channel ? "linear_attention_channels" : "linear_attention";
    auto& mix = work.kernel(kernel, read, {out}, read, tokens * heads, value_dim);
    // By the recurrence: a product to write and one to read the state, and one more for the delta rule to read before it writes.
    mix.flops = static_cast<double>(tokens * features) * static_cast<double>(value_dim) * 2 * (corrects ? 3 : 2);
    // Over ranks the delta rule runs through the tokens once more before states are known, with more columns, and once in backward
    // (kernels/linear_attention.h): together about what the layer itself takes.
    if (corrects && layout_.sequence.is_on()) work.inner_kernel(kernel, tokens * heads, value_dim, 1);
    const auto normed_heads = work.narrow(values), gated = work.narrow(values);
    work.kernel("rms_norm", {out}, {normed_heads}, {out, work.wide(heads)}, tokens * heads, value_dim);
    if (c.linear_output_gate) {
      const auto gate = work.narrow(values);
      work.linear(x, gate);
      work.kernel("output_gate", {normed_heads, gate}, {gated}, {work.wide(values), work.wide(values), work.wide(values)});
    } else {
      work.kernel("scale", {normed_heads}, {gated}, {work.wide(values)});
    }
    const auto product = work.narrow(c.hidden);
    work.linear(gated, product);
    return describe_leave(work, product);
  }

  LinearVariant variant_{};
  FeatureMap map_{};
  std::vector<Softmax> softmax_;  // by layer
  std::vector<layers::LinearAttention> linear_;
};

ModelConfig from_hugging_face(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  auto c = llama_like_from_hugging_face(fields);
  c.family = "linear_llama";
  c.layer_pattern = fields.text("layer_pattern", c.layer_pattern);
  c.linear_attention = fields.text("linear_attention", c.linear_attention);
  c.feature_map = fields.text("feature_map", c.feature_map);
  c.linear_key_dim = fields.integer("linear_key_dim", 0);
  c.linear_value_dim = fields.integer("linear_value_dim", 0);
  c.short_convolution = fields.integer("short_convolution", 0);
  c.gate_rank = fields.integer("gate_rank", c.gate_rank);
  c.linear_output_gate = fields.boolean("linear_output_gate", true);
  return c;
}

// transformers has no such model; the file is for ingot's own way back and for whoever writes one.
nlohmann::json to_hugging_face(const ModelConfig& c) {
  auto json = llama_like_to_hugging_face(c);
  json["model_type"] = "linear_llama";
  json["architectures"] = {"LinearLlamaForCausalLM"};
  json["layer_pattern"] = c.layer_pattern;
  json["linear_attention"] = c.linear_attention;
  json["feature_map"] = c.feature_map;
  json["linear_key_dim"] = c.linear_key_dim;
  json["linear_value_dim"] = c.linear_value_dim;
  json["short_convolution"] = c.short_convolution;
  json["gate_rank"] = c.gate_rank;
  json["linear_output_gate"] = c.linear_output_gate;
  return json;
}

}  // namespace

Family linear_llama_family() {
  return {"linear_llama", "linear_llama",
          [](const ModelConfig& c, const Layout& layout) -> std::unique_ptr<Model> { return std::make_unique<LinearLlama>(c, layout); },
          from_hugging_face, to_hugging_face};
}

}  // namespace ingot::models
