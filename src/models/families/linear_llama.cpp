// Llama's blocks with linear attention in some of the layers and softmax attention in the others ("Linear-Llama" and its hybrids,
// LASP-2H, arXiv 2502.07563).
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"

namespace ingot::models {
namespace {

std::vector<LayerParts> parts(const ModelConfig& c) {
  std::vector<LayerParts> pattern;
  for (const Mixer mixer : mixers_of_pattern(c)) pattern.push_back({.mixer = mixer});
  return pattern;
}

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

void small(ModelConfig& c) { c.linear_key_dim = 6, c.linear_value_dim = 5; }

}  // namespace

Family linear_llama_family() {
  return {.name = "linear_llama",
          .hugging_face_type = "linear_llama",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .small = small};
}

}  // namespace ingot::models
