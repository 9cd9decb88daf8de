// DeepSeek-V3 (arXiv 2412.19437): latent attention, a few dense layers, then mixtures with shared experts behind a router of sigmoids and
// groups; predictors of further tokens.
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/latent_folder.h"
#include "models/llama_like.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

using layers::Parameter;
using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig& c) {
  std::vector<LayerParts> all(static_cast<size_t>(c.layers), {.mixer = Mixer::latent, .feed_forward = FeedForwardKind::moe});
  for (int64_t layer = 0; layer < std::min(c.layers, c.first_dense_layers); ++layer)
    all[static_cast<size_t>(layer)].feed_forward = FeedForwardKind::mlp;
  return all;
}

// ---- config.json ----

// What a stretched context multiplies the scores by, the root of it: "mscale_all_dim" is its slope.
double sharpness(const ModelConfig& c) { return std::sqrt(c.softmax_scale * std::sqrt(static_cast<double>(c.head_dim))); }

void read_scale(ModelConfig& c, const json& rope) {
  const double slope = HuggingFaceFields(rope).number("mscale_all_dim", 0);
  if (c.rope_scaling == "none" || slope == 0) return;
  const double sharper = yarn_scale(c.rope_factor, slope);
  c.softmax_scale = sharper * sharper / std::sqrt(static_cast<double>(c.head_dim));
}

ModelConfig from_hugging_face(const json& document) {
  const HuggingFaceFields fields(document);
  ModelConfig c = fields.common();
  c.family = "deepseek_v3";
  if (!fields.has("num_key_value_heads")) c.kv_heads = c.heads;
  // transformers' defaults, from here on.
  const int64_t plain = fields.integer("qk_nope_head_dim", 128);
  c.rope_head_dim = fields.integer("qk_rope_head_dim", 64);
  c.head_dim = plain + c.rope_head_dim;
  c.value_head_dim = fields.integer("v_head_dim", 128);
  c.kv_rank = fields.integer("kv_lora_rank", 512);
  c.query_rank = document.contains("q_lora_rank") && document.at("q_lora_rank").is_null() ? 0 : fields.integer("q_lora_rank", 1536);
  c.attention_bias = fields.boolean("attention_bias", false);
  c.ffn = fields.integer("intermediate_size", 18432);
  c.first_dense_layers = fields.integer("first_k_dense_replace", 3);
  c.experts = fields.has("n_routed_experts") ? fields.integer("n_routed_experts") : fields.integer("num_local_experts", 256);
  c.top_k = fields.integer("num_experts_per_tok", 8);
  c.expert_ffn = fields.integer("moe_intermediate_size", 2048);
  c.shared_expert_ffn = fields.integer("n_shared_experts", 1) * c.expert_ffn;
  c.router_score = "sigmoid";
  c.router_groups = fields.integer("n_group", 8);
  c.router_top_groups = fields.integer("topk_group", 4);
  c.router_scale = fields.number("routed_scaling_factor", 2.5);
  c.norm_topk_prob = fields.boolean("norm_topk_prob", true);
  fields.refuse_unless("hidden_act", "silu");
  fields.refuse_unless("scoring_func", "sigmoid");
  fields.refuse_unless("topk_method", "noaux_tc");
  if (fields.integer("moe_layer_freq", 1) != 1)
    throw base::ModelError("{}: moe_layer_freq is not 1, which is not supported", fields.origin());
  if (!fields.boolean("rope_interleave", true))
    throw base::ModelError("{}: rope_interleave = false is not supported for this model type", fields.origin());
  const auto rope = fields.rope();
  fields.read_rope(c, rope);
  if (c.rope_fraction != 1) throw base::ModelError("{}: partial_rotary_factor is not 1, which is not supported", fields.origin());
  read_scale(c, rope);
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  if (c.router_score != "sigmoid")
    throw base::ConfigError("model.router_score = {}: deepseek_v3 has sigmoid in Hugging Face's form", c.router_score);
  if (c.shared_expert_ffn % c.expert_ffn != 0)
    throw base::ConfigError(
        "model.shared_expert_ffn = {} is not a multiple of model.expert_ffn = {}: deepseek_v3 has no such thing in Hugging Face's form",
        c.shared_expert_ffn, c.expert_ffn);
  if (c.softmax_scale > 0 && c.rope_scaling == "none")
    throw base::ConfigError("model.softmax_scale = {}: deepseek_v3 has it for a stretched RoPE alone in Hugging Face's form",
                            c.softmax_scale);
  auto common = c;  // without what is this family's own
  common.softmax_scale = 0, common.mtp_layers = 0;
  auto document = llama_attention_to_hugging_face(common);
  document["model_type"] = "deepseek_v3";
  document["architectures"] = {"DeepseekV3ForCausalLM"};
  document["head_dim"] = document["qk_rope_head_dim"] = c.rope_head_dim;
  document["qk_nope_head_dim"] = c.resolved_head_dim() - c.rope_head_dim;
  document["v_head_dim"] = c.resolved_value_head_dim();
  document["kv_lora_rank"] = c.kv_rank;
  document["q_lora_rank"] = c.query_rank > 0 ? json(c.query_rank) : json();
  document["rope_interleave"] = true;
  document["intermediate_size"] = c.ffn;
  document["first_k_dense_replace"] = c.first_dense_layers;
  document["n_routed_experts"] = c.experts;
  document["num_experts_per_tok"] = c.top_k;
  document["moe_intermediate_size"] = c.expert_ffn;
  document["n_shared_experts"] = c.shared_expert_ffn / c.expert_ffn;
  document["n_group"] = c.router_groups;
  document["topk_group"] = c.router_top_groups;
  document["routed_scaling_factor"] = c.router_scale;
  document["norm_topk_prob"] = c.norm_topk_prob;
  document["num_nextn_predict_layers"] = c.mtp_layers;
  if (c.softmax_scale > 0) document["rope_parameters"]["mscale_all_dim"] = (sharpness(c) - 1) / (0.1 * std::log(c.rope_factor));
  return document;
}

// ---- tensors ----

std::vector<StoredPiece> stored(const ModelConfig& c, const Parameter& p) {
  if (is_turned(p)) return stored_turned(c, p);
  auto pieces = stored_by_expert(c, p);
  name_correction_bias(pieces);
  return pieces;
}

// Layers behind the last one predict further tokens; each repeats the embedding and the head.
bool is_ignored(const ModelConfig& c, const std::string& name) {
  const std::string prefix = "model.layers.";
  const int64_t layer = name.starts_with(prefix) ? std::atoll(name.c_str() + prefix.size()) : 0;
  if (layer >= c.layers + c.mtp_layers) return true;
  return layer >= c.layers && (name.ends_with(".embed_tokens.weight") || name.ends_with(".shared_head.head.weight"));
}

void small(ModelConfig& c) {
  c.kv_heads = c.heads, c.head_dim = 6, c.rope_head_dim = 2, c.value_head_dim = 3, c.kv_rank = 10, c.query_rank = 14;
  c.experts = 6, c.router_score = "sigmoid", c.router_groups = 3, c.router_top_groups = 2, c.router_scale = 1.5;
  c.shared_expert_ffn = 2 * c.expert_ffn, c.first_dense_layers = 1;
}

}  // namespace

Family deepseek_v3_family() {
  return {.name = "deepseek_v3",
          .hugging_face_type = "deepseek_v3",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .stored = stored,
          .is_ignored = is_ignored,
          .small = small};
}

}  // namespace ingot::models
