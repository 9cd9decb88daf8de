// Llama 2 and 3: softmax attention of grouped queries and a gated MLP in every block.
#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/llama_like.h"

namespace ingot::models {
namespace {

ModelConfig from_hugging_face(const nlohmann::json& json) {
  auto c = llama_like_from_hugging_face(HuggingFaceFields(json));
  c.family = "llama";
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  auto json = llama_like_to_hugging_face(c);
  json["model_type"] = "llama";
  json["architectures"] = {"LlamaForCausalLM"};
  return json;
}

}  // namespace

Family llama_family() {
  return {"llama", "llama", [](const ModelConfig&) { return std::vector<LayerParts>(1); }, from_hugging_face, to_hugging_face};
}

}  // namespace ingot::models
