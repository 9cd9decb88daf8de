// Gemma 3, text: norms with 1 + weight around both branches and of every query and key head, a GeGLU, embeddings times sqrt(hidden), and
// five sliding layers with a RoPE base of their own to each full one.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/hugging_face_config.h"

namespace ingot::models {
namespace {

using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig& c) {
  if (c.mlp_bias) throw base::ConfigError("model.mlp_bias = true: the gemma3_text family has no such biases");
  return {
      {.qk_norm = QkNorm::head, .norms = NormPlacement::around, .norm_weight = NormWeight::zero_centred, .gate = kernels::Gate::gelu_tanh}};
}

double embedding_scale(const ModelConfig& c) { return std::sqrt(static_cast<double>(c.hidden)); }

ModelConfig from_hugging_face(const json& config) {
  const HuggingFaceFields fields(config);
  ModelConfig c = fields.common();
  c.family = "gemma3_text";
  if (c.head_dim == 0) c.head_dim = 256;  // transformers' defaults, from here on
  c.ffn = fields.integer("intermediate_size");
  c.tie_embeddings = fields.boolean("tie_word_embeddings", true);
  c.attention_bias = fields.boolean("attention_bias", false);
  c.softmax_scale = 1 / std::sqrt(fields.number("query_pre_attn_scalar", 256));
  fields.refuse_unless("hidden_activation", "gelu_pytorch_tanh");
  fields.refuse_if_true("use_bidirectional_attention");
  c.logit_cap = fields.number("final_logit_softcapping", 0);
  if (fields.has("attn_logit_softcapping"))
    throw base::ModelError("{}: attn_logit_softcapping is not supported for this model type", fields.origin());
  fields.read_layer_types(c, {{"full_attention", "full"}, {"sliding_attention", "sliding"}});
  if (!fields.has("layer_types")) {  // files older than transformers 4.53
    const int64_t pattern = fields.integer("sliding_window_pattern", 6);
    if (pattern < 1) throw base::ModelError("{}: sliding_window_pattern = {} is not positive", fields.origin(), pattern);
    c.layer_types.assign(static_cast<size_t>(pattern - 1), "sliding");
    c.layer_types.emplace_back("full");
    c.window = fields.integer("sliding_window", 4096);
  }
  fields.read_rope(c, fields.rope("full_attention"));
  const auto rope = config.find("rope_parameters");
  const bool has_kinds = rope != config.end() && rope->is_object() && rope->contains("sliding_attention");
  if (has_kinds) {
    const HuggingFaceFields sliding(rope->at("sliding_attention"));
    c.rope_base_sliding = sliding.number("rope_theta", 10000);
    const auto type = sliding.text("rope_type", "default");
    if (type != "default" && type != c.rope_scaling)
      throw base::ModelError("{}: rope_type '{}' of sliding layers beside '{}' of full ones is not supported", fields.origin(), type,
                             c.rope_scaling);
    c.rope_scaling_sliding = type != "default";
  } else {
    if (!fields.has("rope_theta")) c.rope_base = 1000000;
    c.rope_base_sliding = fields.number("rope_local_base_freq", 10000);
    c.rope_scaling_sliding = false;
  }
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  if (c.embedding_scale > 0 && c.embedding_scale != embedding_scale(c))
    throw base::ConfigError("model.embedding_scale = {}: gemma3_text has sqrt(hidden) in Hugging Face's form", c.embedding_scale);
  auto common = c;  // without what is this family's own
  common.softmax_scale = common.embedding_scale = common.logit_cap = 0;
  common.rope_scaling_sliding = true;
  auto document = common_hugging_face_config(common);
  document["model_type"] = "gemma3_text";
  document["architectures"] = {"Gemma3ForCausalLM"};
  document["intermediate_size"] = c.ffn;
  document["attention_bias"] = c.attention_bias;
  document["hidden_activation"] = "gelu_pytorch_tanh";
  document["final_logit_softcapping"] = c.logit_cap > 0 ? json(c.logit_cap) : json();
  // An integer where it is one, which transformers expects.
  const double scalar = c.softmax_scale > 0 ? 1 / (c.softmax_scale * c.softmax_scale) : static_cast<double>(c.resolved_head_dim());
  const double whole = std::round(scalar);
  document["query_pre_attn_scalar"] = std::abs(scalar - whole) < 1e-9 * whole ? json(static_cast<int64_t>(whole)) : json(scalar);
  document["sliding_window"] = c.window > 0 ? json(c.window) : json(4096);
  document["layer_types"] = hugging_face_layer_types(c, "full_attention", "sliding_attention");
  auto unscaled = c;
  if (!c.rope_scaling_sliding) unscaled.rope_scaling = "none";
  document["rope_parameters"] = {{"full_attention", hugging_face_rope(c, c.rope_base)},
                                 {"sliding_attention", hugging_face_rope(unscaled, c.rope_base_sliding)}};
  return document;
}

void small(ModelConfig& c) { c.layer_types = {"sliding", "full"}, c.window = 5; }

}  // namespace

Family gemma3_text_family() {
  return {.name = "gemma3_text",
          .hugging_face_type = "gemma3_text",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .embedding_scale = embedding_scale,
          .small = small};
}

}  // namespace ingot::models
