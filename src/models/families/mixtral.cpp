// Mixtral: Llama's blocks with a mixture of experts in place of the MLP.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

std::vector<LayerParts> parts(const ModelConfig&) { return {{.feed_forward = FeedForwardKind::moe}}; }

// The weights of a token's experts always sum to 1; there are no biases.
ModelConfig from_hugging_face(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  auto c = moe_from_hugging_face(fields, "mixtral");
  c.top_k = fields.integer("num_experts_per_tok", 2);
  c.norm_topk_prob = true;
  c.experts = fields.integer("num_local_experts", 8);
  c.expert_ffn = fields.integer("intermediate_size");
  fields.read_window_of_all_layers(c);
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  if (!c.norm_topk_prob || c.attention_bias)
    throw base::ConfigError("model.{}: mixtral has no such thing in Hugging Face's form",
                            c.attention_bias ? "attention_bias = true" : "norm_topk_prob = false");
  auto full = c;
  const auto window = take_window_of_all_layers(full);
  auto json = moe_to_hugging_face(full, "mixtral", "MixtralForCausalLM");
  for (const char* unknown : {"norm_topk_prob", "attention_bias"}) json.erase(unknown);
  json["num_local_experts"] = c.experts;
  json["intermediate_size"] = c.expert_ffn;
  json["sliding_window"] = window;
  return json;
}

}  // namespace

Family mixtral_family() {
  return {.name = "mixtral",
          .hugging_face_type = "mixtral",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .stored = stored_as_mixtral};
}

}  // namespace ingot::models
