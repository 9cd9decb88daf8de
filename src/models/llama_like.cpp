#include "models/llama_like.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace ingot::models {

ModelConfig llama_like_from_hugging_face(const HuggingFaceFields& fields) {
  ModelConfig c = fields.common();
  c.ffn = fields.integer("intermediate_size");
  c.attention_bias = fields.boolean("attention_bias", false);
  c.mlp_bias = fields.boolean("mlp_bias", false);
  fields.refuse_unless("hidden_act", "silu");
  fields.read_rope(c, fields.rope());
  return c;
}

ModelConfig moe_from_hugging_face(const HuggingFaceFields& fields, const char* family) {
  ModelConfig c = fields.common();
  c.family = family;
  c.top_k = fields.integer("num_experts_per_tok", 8);
  c.norm_topk_prob = fields.boolean("norm_topk_prob", false);
  c.attention_bias = fields.boolean("attention_bias", false);
  fields.refuse_unless("hidden_act", "silu");
  fields.read_rope(c, fields.rope());
  return c;
}

nlohmann::json moe_to_hugging_face(const ModelConfig& c, const char* type, const char* architecture) {
  auto json = llama_attention_to_hugging_face(c);
  json["model_type"] = type;
  json["architectures"] = {architecture};
  json["num_experts_per_tok"] = c.top_k;
  json["norm_topk_prob"] = c.norm_topk_prob;
  return json;
}

std::vector<Mixer> mixers_of_pattern(const ModelConfig& c) {
  if (c.layer_pattern.empty() || c.layer_pattern.find_first_not_of("LN") != std::string::npos)
    throw base::ConfigError("model.layer_pattern = '{}'; it is made of L (linear) and N (softmax), as in LLLN", c.layer_pattern);
  std::vector<Mixer> mixers;
  for (const char kind : c.layer_pattern) mixers.push_back(kind == 'L' ? Mixer::linear : Mixer::softmax);
  return mixers;
}

void refuse_dense_layers(const HuggingFaceFields& fields, const nlohmann::json& json) {
  const auto mlp_only = json.find("mlp_only_layers");
  const bool has_dense = mlp_only != json.end() && mlp_only->is_array() && !mlp_only->empty();
  if (fields.integer("decoder_sparse_step", 1) != 1 || has_dense)
    throw base::ModelError("{}: decoder_sparse_step and mlp_only_layers are not read: every layer must have experts", fields.origin());
}

nlohmann::json llama_attention_to_hugging_face(const ModelConfig& c) {
  for (int64_t layer = 0; layer < c.layers; ++layer)
    if (c.is_sliding(layer))
      throw base::ConfigError(
          "layer {} has a sliding window, which the {} family has not in Hugging Face's form: this model cannot be exported", layer,
          c.family);
  auto json = common_hugging_face_config(c);
  json["attention_bias"] = c.attention_bias;
  json["hidden_act"] = "silu";
  json["rope_parameters"] = hugging_face_rope(c, c.rope_base);
  return json;
}

nlohmann::json llama_like_to_hugging_face(const ModelConfig& c) {
  auto json = llama_attention_to_hugging_face(c);
  json["intermediate_size"] = c.ffn;
  json["mlp_bias"] = c.mlp_bias;
  return json;
}

}  // namespace ingot::models
