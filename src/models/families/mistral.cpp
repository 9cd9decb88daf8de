// Mistral: Llama's blocks, of which all may have a sliding window.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"

namespace ingot::models {
namespace {

using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig& c) {
  if (c.mlp_bias || c.attention_bias) throw base::ConfigError("model.attention_bias, mlp_bias: the mistral family has no biases");
  return std::vector<LayerParts>(1);
}

ModelConfig from_hugging_face(const json& config) {
  // transformers' defaults; null is no window.
  auto document = config;
  if (!config.contains("sliding_window")) document["sliding_window"] = 4096;
  if (!config.contains("max_position_embeddings")) document["max_position_embeddings"] = 131072;
  const HuggingFaceFields fields(document);
  auto c = llama_like_from_hugging_face(fields);
  c.family = "mistral";
  c.attention_bias = c.mlp_bias = false;  // whatever a file says of them, there are none
  fields.read_window_of_all_layers(c);
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  auto full = c;
  const auto window = take_window_of_all_layers(full);
  auto document = llama_like_to_hugging_face(full);
  document["model_type"] = "mistral";
  document["architectures"] = {"MistralForCausalLM"};
  for (const char* unknown : {"attention_bias", "mlp_bias"}) document.erase(unknown);
  document["sliding_window"] = window;
  return document;
}

void small(ModelConfig& c) { c.layer_types = {"sliding"}, c.window = 5; }

}  // namespace

Family mistral_family() {
  return {.name = "mistral",
          .hugging_face_type = "mistral",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .small = small};
}

}  // namespace ingot::models
