// Qwen3: Llama's blocks with an RMSNorm of every query and key head before RoPE, and heads as wide as head_dim says.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/hugging_face_config.h"

namespace ingot::models {
namespace {

std::vector<LayerParts> parts(const ModelConfig& c) {
  if (c.mlp_bias) throw base::ConfigError("model.mlp_bias = true: the qwen3 family has no such biases");
  return {{.qk_norm = QkNorm::head}};
}

ModelConfig from_hugging_face(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  ModelConfig c = fields.common();
  c.family = "qwen3";
  if (c.head_dim == 0) c.head_dim = 128;  // transformers' default; not hidden / heads
  c.ffn = fields.integer("intermediate_size");
  c.attention_bias = fields.boolean("attention_bias", false);
  fields.refuse_unless("hidden_act", "silu");
  fields.read_layer_types(c, {{"full_attention", "full"}, {"sliding_attention", "sliding"}});
  fields.read_rope(c, fields.rope());
  c.rope_base_sliding = c.rope_base;
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  auto json = common_hugging_face_config(c);
  json["model_type"] = "qwen3";
  json["architectures"] = {"Qwen3ForCausalLM"};
  json["intermediate_size"] = c.ffn;
  json["attention_bias"] = c.attention_bias;
  json["hidden_act"] = "silu";
  json["rope_parameters"] = hugging_face_rope(c, c.rope_base);
  json["layer_types"] = hugging_face_layer_types(c, "full_attention", "sliding_attention");
  const bool any_sliding = slides_with_one_rope_base(c);
  json["use_sliding_window"] = any_sliding;
  json["sliding_window"] = any_sliding ? nlohmann::json(c.window) : nlohmann::json();
  return json;
}

}  // namespace

Family qwen3_family() {
  return {.name = "qwen3",
          .hugging_face_type = "qwen3",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face};
}

}  // namespace ingot::models
