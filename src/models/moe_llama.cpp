// Llama's blocks with a mixture of experts in place of the MLP: Mixtral, OLMoE (RMSNorm over the channels of all queries, and of all keys)
// and Qwen3-MoE (RMSNorm of every head).
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

std::vector<LayerParts> mixtral_parts(const ModelConfig&) { return {{.feed_forward = FeedForwardKind::moe}}; }
std::vector<LayerParts> olmoe_parts(const ModelConfig&) { return {{.feed_forward = FeedForwardKind::moe, .qk_norm = QkNorm::all}}; }
std::vector<LayerParts> qwen3_moe_parts(const ModelConfig&) { return {{.feed_forward = FeedForwardKind::moe, .qk_norm = QkNorm::head}}; }

ModelConfig common(const HuggingFaceFields& fields, const char* family) {
  ModelConfig c = fields.common();
  c.family = family;
  c.top_k = fields.integer("num_experts_per_tok", 8);
  c.norm_topk_prob = fields.boolean("norm_topk_prob", false);
  c.attention_bias = fields.boolean("attention_bias", false);
  fields.refuse_unless("hidden_act", "silu");
  fields.read_rope(c, fields.rope());
  return c;
}

nlohmann::json common(const ModelConfig& c, const char* type, const char* architecture) {
  auto json = llama_attention_to_hugging_face(c);
  json["model_type"] = type;
  json["architectures"] = {architecture};
  json["num_experts_per_tok"] = c.top_k;
  json["norm_topk_prob"] = c.norm_topk_prob;
  return json;
}

ModelConfig olmoe_from(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  auto c = common(fields, "olmoe");
  if (fields.has("clip_qkv")) throw base::ModelError("{}: clip_qkv is not supported for this model type", fields.origin());
  c.experts = fields.integer("num_experts", 64);
  c.expert_ffn = fields.integer("intermediate_size");
  return c;
}

nlohmann::json olmoe_to(const ModelConfig& c) {
  if (c.head_dim > 0 && c.head_dim * c.heads != c.hidden)
    throw base::ConfigError("model.head_dim = {}: olmoe's is hidden / heads in Hugging Face's form", c.head_dim);
  auto json = common(c, "olmoe", "OlmoeForCausalLM");
  json.erase("head_dim");
  json["num_experts"] = c.experts;
  json["intermediate_size"] = c.expert_ffn;
  json["clip_qkv"] = nullptr;
  return json;
}

ModelConfig qwen3_moe_from(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  auto c = common(fields, "qwen3_moe");
  if (c.head_dim == 0) throw base::ModelError("{}: the field head_dim is missing", fields.origin());
  fields.refuse_if_true("use_sliding_window");
  refuse_dense_layers(fields, json);
  c.experts = fields.has("num_experts") ? fields.integer("num_experts") : fields.integer("num_local_experts", 128);
  c.expert_ffn = fields.integer("moe_intermediate_size");
  c.ffn = fields.integer("intermediate_size", 0);
  return c;
}

nlohmann::json qwen3_moe_to(const ModelConfig& c) {
  auto json = common(c, "qwen3_moe", "Qwen3MoeForCausalLM");
  json["num_experts"] = json["num_local_experts"] = c.experts;
  json["moe_intermediate_size"] = c.expert_ffn;
  json["intermediate_size"] = c.ffn > 0 ? c.ffn : c.expert_ffn;
  json["decoder_sparse_step"] = 1;
  json["mlp_only_layers"] = nlohmann::json::array();
  json["use_sliding_window"] = false;
  return json;
}

// The weights of a token's experts always sum to 1; there are no biases.
ModelConfig mixtral_from(const nlohmann::json& json) {
  const HuggingFaceFields fields(json);
  auto c = common(fields, "mixtral");
  c.top_k = fields.integer("num_experts_per_tok", 2);
  c.norm_topk_prob = true;
  c.experts = fields.integer("num_local_experts", 8);
  c.expert_ffn = fields.integer("intermediate_size");
  fields.read_window_of_all_layers(c);
  return c;
}

nlohmann::json mixtral_to(const ModelConfig& c) {
  if (!c.norm_topk_prob || c.attention_bias)
    throw base::ConfigError("model.{}: mixtral has no such thing in Hugging Face's form",
                            c.attention_bias ? "attention_bias = true" : "norm_topk_prob = false");
  auto full = c;
  const auto window = take_window_of_all_layers(full);
  auto json = common(full, "mixtral", "MixtralForCausalLM");
  for (const char* unknown : {"norm_topk_prob", "attention_bias"}) json.erase(unknown);
  json["num_local_experts"] = c.experts;
  json["intermediate_size"] = c.expert_ffn;
  json["sliding_window"] = window;
  return json;
}

}  // namespace

Family mixtral_family() { return {"mixtral", "mixtral", mixtral_parts, mixtral_from, mixtral_to, nullptr, stored_as_mixtral}; }
Family olmoe_family() { return {"olmoe", "olmoe", olmoe_parts, olmoe_from, olmoe_to, nullptr, stored_by_expert}; }
Family qwen3_moe_family() { return {"qwen3_moe", "qwen3_moe", qwen3_moe_parts, qwen3_moe_from, qwen3_moe_to, nullptr, stored_by_expert}; }

}  // namespace ingot::models
