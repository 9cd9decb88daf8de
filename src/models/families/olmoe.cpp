// OLMoE: Llama's blocks with a mixture of experts, and an RMSNorm over the channels of all queries, and of all keys.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

std::vector<LayerParts> parts(const ModelConfig&) { return {{.feed_forward = FeedForwardKind::moe, .qk_norm = QkNorm::all}}; }

ModelConfig from_hugging_face(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  auto c = moe_from_hugging_face(fields, "olmoe");
  if (fields.has("clip_qkv")) throw base::ModelError("{}: clip_qkv is not supported for this model type", fields.origin());
  c.experts = fields.integer("num_experts", 64);
  c.expert_ffn = fields.integer("intermediate_size");
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  if (c.head_dim > 0 && c.head_dim * c.heads != c.hidden)
    throw base::ConfigError("model.head_dim = {}: olmoe's is hidden / heads in Hugging Face's form", c.head_dim);
  auto json = moe_to_hugging_face(c, "olmoe", "OlmoeForCausalLM");
  json.erase("head_dim");
  json["num_experts"] = c.experts;
  json["intermediate_size"] = c.expert_ffn;
  json["clip_qkv"] = nullptr;
  return json;
}

void small(ModelConfig& c) { c.norm_topk_prob = false; }

}  // namespace

Family olmoe_family() {
  return {.name = "olmoe",
          .hugging_face_type = "olmoe",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .stored = stored_by_expert,
          .small = small};
}

}  // namespace ingot::models
