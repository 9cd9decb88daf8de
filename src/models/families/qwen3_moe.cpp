// Qwen3-MoE: Qwen3's blocks with a mixture of experts in place of the MLP.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

std::vector<LayerParts> parts(const ModelConfig&) { return {{.feed_forward = FeedForwardKind::moe, .qk_norm = QkNorm::head}}; }

ModelConfig from_hugging_face(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  auto c = moe_from_hugging_face(fields, "qwen3_moe");
  if (c.head_dim == 0) throw base::ModelError("{}: the field head_dim is missing", fields.origin());
  fields.refuse_if_true("use_sliding_window");
  refuse_dense_layers(fields, json);
  c.experts = fields.has("num_experts") ? fields.integer("num_experts") : fields.integer("num_local_experts", 128);
  c.expert_ffn = fields.integer("moe_intermediate_size");
  c.ffn = fields.integer("intermediate_size", 0);
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  auto json = moe_to_hugging_face(c, "qwen3_moe", "Qwen3MoeForCausalLM");
  json["num_experts"] = json["num_local_experts"] = c.experts;
  json["moe_intermediate_size"] = c.expert_ffn;
  json["intermediate_size"] = c.ffn > 0 ? c.ffn : c.expert_ffn;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = nlohmann::json::array();
  json["use_sliding_window"] = false;
  return json;
}

}  // namespace

Family qwen3_moe_family() {
  return {.name = "qwen3_moe",
          .hugging_face_type = "qwen3_moe",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .stored = stored_by_expert};
}

}  // namespace ingot::models
