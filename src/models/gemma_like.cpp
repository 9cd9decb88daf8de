#include "models/gemma_like.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ingot::models {

using nlohmann::json;

LayerParts gemma_like_parts(const ModelConfig& c, QkNorm qk_norm) {
  if (c.mlp_bias) throw base::ConfigError("model.mlp_bias = true: the {} family has no such biases", c.family);
  return {.qk_norm = qk_norm, .norms = NormPlacement::around, .norm_weight = NormWeight::zero_centred, .gate = kernels::Gate::gelu_tanh};
}

double gemma_embedding_scale(const ModelConfig& c) { return std::sqrt(static_cast<double>(c.hidden)); }

ModelConfig gemma_like_from_hugging_face(const HuggingFaceFields& fields, const char* family) {
  ModelConfig c = fields.common();
  c.family = family;
  if (c.head_dim == 0) c.head_dim = 256;  // transformers' defaults, from here on
  c.ffn = fields.integer("intermediate_size");
  c.tie_embeddings = fields.boolean("tie_word_embeddings", true);
  c.attention_bias = fields.boolean("attention_bias", false);
  const auto positive = [&](const char* name, double otherwise, bool may_be_zero) {
    const double value = fields.number(name, otherwise);
    if (value < 0 || (value == 0 && !may_be_zero)) throw base::ModelError("{}: {} = {} is not positive", fields.origin(), name, value);
    return value;
  };
  c.softmax_scale = 1 / std::sqrt(positive("query_pre_attn_scalar", 256, false));
  fields.refuse_unless("hidden_activation", "gelu_pytorch_tanh");
  fields.refuse_if_true("use_bidirectional_attention");
  c.logit_cap = positive("final_logit_softcapping", 0, true);
  c.score_cap = positive("attn_logit_softcapping", 0, true);
  fields.read_layer_types(c, {{"full_attention", "full"}, {"sliding_attention", "sliding"}});
  return c;
}

json gemma_like_to_hugging_face(const ModelConfig& c, const char* type, const char* architecture) {
  if (c.embedding_scale > 0 && c.embedding_scale != gemma_embedding_scale(c))
    throw base::ConfigError("model.embedding_scale = {}: {} has sqrt(hidden) in Hugging Face's form", c.embedding_scale, c.family);
  auto common = c;  // without what is these families' own
  common.softmax_scale = common.embedding_scale = common.logit_cap = common.score_cap = 0;
  auto document = common_hugging_face_config(common);
  document["model_type"] = type;
  document["architectures"] = {architecture};
  document["intermediate_size"] = c.ffn;
  document["attention_bias"] = c.attention_bias;
  document["hidden_activation"] = "gelu_pytorch_tanh";
  document["final_logit_softcapping"] = c.logit_cap > 0 ? json(c.logit_cap) : json();
  document["attn_logit_softcapping"] = c.score_cap > 0 ? json(c.score_cap) : json();
  // An integer where it is one, which transformers expects.
  const double scalar = c.softmax_scale > 0 ? 1 / (c.softmax_scale * c.softmax_scale) : static_cast<double>(c.resolved_head_dim());
  const double whole = std::round(scalar);
  document["query_pre_attn_scalar"] = std::abs(scalar - whole) < 1e-9 * whole ? json(static_cast<int64_t>(whole)) : json(scalar);
  document["sliding_window"] = c.window > 0 ? json(c.window) : json(4096);
  document["layer_types"] = hugging_face_layer_types(c, "full_attention", "sliding_attention");
  return document;
}

}  // namespace ingot::models
