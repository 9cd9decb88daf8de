// Qwen2 and Qwen2.5: Llama's blocks with biases of queries, keys and values alone, and layers from a certain depth on that may slide.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"

namespace ingot::models {
namespace {

using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig& c) {
  if (c.mlp_bias || c.attention_bias)
    throw base::ConfigError(
        "model.attention_bias, mlp_bias: the qwen2 family has biases of q, k and v, always, and no others; leave both out");
  return {{.has_qkv_biases = true}};
}

ModelConfig from_hugging_face(const json& config) {
  const HuggingFaceFields fields(config);
  auto c = llama_like_from_hugging_face(fields);
  c.family = "qwen2";
  c.attention_bias = c.mlp_bias = false;  // whatever a file says of them
  fields.read_layer_types(c, {{"full_attention", "full"}, {"sliding_attention", "sliding"}});
  const bool slides = fields.boolean("use_sliding_window", false);
  if (!c.layer_types.empty() && !slides) throw base::ModelError("{}: layer_types slide, and use_sliding_window is false", fields.origin());
  const int64_t first = fields.integer("max_window_layers", 28);
  const bool has_window = !config.contains("sliding_window") || fields.has("sliding_window");  // null is none
  if (c.layers > 1'000'000) throw base::ModelError("{}: {} layers are not possible", fields.origin(), c.layers);
  if (!fields.has("layer_types") && slides && has_window && first < c.layers) {
    c.window = fields.integer("sliding_window", 4096);
    for (int64_t layer = 0; layer < c.layers; ++layer) c.layer_types.emplace_back(layer >= first ? "sliding" : "full");
  }
  if (c.layer_types.empty()) c.window = 0;
  c.rope_base_sliding = c.rope_base;
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  const bool slides = slides_with_one_rope_base(c);
  auto full = c;
  full.layer_types.clear();
  auto document = llama_like_to_hugging_face(full);
  document["model_type"] = "qwen2";
  document["architectures"] = {"Qwen2ForCausalLM"};
  for (const char* unknown : {"attention_bias", "mlp_bias"}) document.erase(unknown);
  document["layer_types"] = hugging_face_layer_types(c, "full_attention", "sliding_attention");
  document["use_sliding_window"] = slides;
  document["sliding_window"] = slides ? json(c.window) : json();
  return document;
}

void small(ModelConfig& c) { c.layer_types = {"full", "sliding"}, c.window = 5; }

}  // namespace

Family qwen2_family() {
  return {.name = "qwen2",
          .hugging_face_type = "qwen2",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .small = small};
}

}  // namespace ingot::models
