// OLMo 2: Llama's blocks with the norms behind both branches, and an RMSNorm over the channels of all queries, and of all keys.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"

namespace ingot::models {
namespace {

std::vector<LayerParts> parts(const ModelConfig& c) {
  if (c.mlp_bias) throw base::ConfigError("model.mlp_bias = true: the olmo2 family has no such biases");
  return {{.qk_norm = QkNorm::all, .norms = NormPlacement::after}};
}

ModelConfig from_hugging_face(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  fields.refuse_if_true("mlp_bias");
  auto c = llama_like_from_hugging_face(fields);
  c.family = "olmo2";
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  auto json = llama_like_to_hugging_face(c);
  json["model_type"] = "olmo2";
  json["architectures"] = {"Olmo2ForCausalLM"};
  return json;
}

}  // namespace

Family olmo2_family() {
  return {.name = "olmo2",
          .hugging_face_type = "olmo2",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face};
}

}  // namespace ingot::models
