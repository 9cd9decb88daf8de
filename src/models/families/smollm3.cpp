// SmolLM3: Llama's blocks, of which every fourth attends without RoPE.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"

namespace ingot::models {
namespace {

using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig&) { return std::vector<LayerParts>(1); }

ModelConfig from_hugging_face(const json& config) {
  const HuggingFaceFields fields(config);
  auto c = llama_like_from_hugging_face(fields);
  c.family = "smollm3";
  if (!fields.rope().contains("rope_theta")) c.rope_base = 2000000;  // transformers' default
  c.tie_embeddings = fields.boolean("tie_word_embeddings", true);
  fields.refuse_if_true("use_sliding_window");
  fields.read_layer_types(c, {{"full_attention", "full"}});
  c.window = 0;
  const int64_t interval = fields.integer("no_rope_layer_interval", 4);
  const auto listed = config.find("no_rope_layers");  // 1 where there is RoPE
  const bool has_list = listed != config.end() && !listed->is_null();
  if (has_list && (!listed->is_array() || static_cast<int64_t>(listed->size()) != c.layers))
    throw base::ModelError("{}: no_rope_layers is not a list of {} numbers, one for each layer", fields.origin(), c.layers);
  for (const auto& entry : has_list ? *listed : json::array())
    if (entry != 0 && entry != 1) throw base::ModelError("{}: no_rope_layers has {}; it takes 0 and 1", fields.origin(), entry.dump());
  if (!has_list && interval < 1) throw base::ModelError("{}: no_rope_layer_interval = {} is not positive", fields.origin(), interval);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const bool rotates = has_list ? (*listed)[static_cast<size_t>(layer)] != 0 : (layer + 1) % interval != 0;
    c.layer_types.emplace_back(rotates ? "full" : "nope");
  }
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  auto all_rotate = c;
  std::replace(all_rotate.layer_types.begin(), all_rotate.layer_types.end(), std::string("nope"), std::string("full"));
  auto document = llama_like_to_hugging_face(all_rotate);
  document["model_type"] = "smollm3";
  document["architectures"] = {"SmolLM3ForCausalLM"};
  document["use_sliding_window"] = false;
  document["no_rope_layers"] = json::array();
  for (int64_t layer = 0; layer < c.layers; ++layer) document["no_rope_layers"].push_back(c.layer_type(layer) == "nope" ? 0 : 1);
  document["layer_types"] = std::vector<std::string>(static_cast<size_t>(c.layers), "full_attention");
  return document;
}

void small(ModelConfig& c) { c.layer_types = {"full", "full", "full", "nope"}; }

}  // namespace

Family smollm3_family() {
  return {.name = "smollm3",
          .hugging_face_type = "smollm3",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .small = small};
}

}  // namespace ingot::models
