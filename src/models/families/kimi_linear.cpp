// Kimi Linear (arXiv 2510.26692): gated delta rules with a decay per channel (KDA) in most layers and latent attention without RoPE in the
// others; a dense layer, then mixtures as DeepSeek-V3's, under Mixtral's names.
#include <algorithm>
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
  const auto pattern = mixers_of_pattern(c);
  std::vector<LayerParts> all;
  for (int64_t layer = 0; layer < c.layers; ++layer)
    all.push_back({.mixer = pattern[static_cast<size_t>(layer) % pattern.size()] == Mixer::linear ? Mixer::linear : Mixer::latent,
                   .feed_forward = layer < c.first_dense_layers ? FeedForwardKind::mlp : FeedForwardKind::moe,
                   .linear = {.shares_norm = true, .scales_queries = true, .has_sigmoid_gate = true}});
  return all;
}

// ---- config.json ----

// Which layers have which attention, numbered from 1.
std::string read_pattern(const HuggingFaceFields& fields, const json& linear, int64_t layers) {
  std::string pattern(static_cast<size_t>(layers), 0);
  for (const auto& [name, kind] : {std::pair{"kda_layers", 'L'}, std::pair{"full_attn_layers", 'N'}})
    for (const auto& number : linear.value(name, json::array())) {
      const int64_t layer = number.is_number_integer() ? number.get<int64_t>() : 0;
      if (layer < 1 || layer > layers || pattern[static_cast<size_t>(layer - 1)] != 0)
        throw base::ModelError("{}: linear_attn_config.{} has {}, which is no layer of {} or is there twice", fields.origin(), name,
                               number.dump(), layers);
      pattern[static_cast<size_t>(layer - 1)] = kind;
    }
  if (const auto none = pattern.find('\0'); none != std::string::npos)
    throw base::ModelError("{}: linear_attn_config names no attention for layer {}", fields.origin(), none + 1);
  return pattern;
}

ModelConfig from_hugging_face(const json& document) {
  const HuggingFaceFields fields(document);
  ModelConfig c = fields.common();
  c.family = "kimi_linear";
  if (!document.contains("linear_attn_config") || !document.at("linear_attn_config").is_object())
    throw base::ModelError("{}: the field linear_attn_config is missing", fields.origin());
  const auto& linear = document.at("linear_attn_config");
  const HuggingFaceFields of_linear(linear);
  c.layer_pattern = read_pattern(fields, linear, c.layers);
  c.linear_attention = "kda", c.feature_map = "l2", c.linear_output_gate = true;
  c.linear_heads = of_linear.integer("num_heads");
  c.linear_key_dim = c.linear_value_dim = c.gate_rank = c.output_gate_rank = of_linear.integer("head_dim");
  c.short_convolution = of_linear.integer("short_conv_kernel_size", 4);
  if (!fields.boolean("mla_use_nope", false))
    throw base::ModelError("{}: mla_use_nope is not true, which is not supported for this model type", fields.origin());
  c.layer_types = {"nope"};
  c.rope_head_dim = fields.integer("qk_rope_head_dim");
  c.head_dim = fields.integer("qk_nope_head_dim") + c.rope_head_dim;
  c.value_head_dim = fields.integer("v_head_dim");
  c.kv_rank = fields.integer("kv_lora_rank");
  c.query_rank = fields.integer("q_lora_rank", 0);
  c.rope_base = fields.number("rope_theta", 10000);
  c.ffn = fields.integer("intermediate_size");
  c.first_dense_layers = fields.integer("first_k_dense_replace", 0);
  c.experts = fields.integer("num_experts");
  c.top_k = fields.integer("num_experts_per_token");
  c.expert_ffn = fields.integer("moe_intermediate_size");
  c.shared_expert_ffn = fields.integer("num_shared_experts", 0) * c.expert_ffn;
  c.router_score = fields.text("moe_router_activation_func", "sigmoid");
  c.norm_topk_prob = fields.boolean("moe_renormalize", true);
  c.router_scale = fields.number("routed_scaling_factor", 1);
  if (fields.boolean("use_grouped_topk", true)) {
    c.router_groups = fields.integer("num_expert_group", 1);
    c.router_top_groups = fields.integer("topk_group", 1);
  }
  fields.refuse_unless("hidden_act", "silu");
  if (fields.integer("moe_layer_freq", 1) != 1)
    throw base::ModelError("{}: moe_layer_freq is not 1, which is not supported", fields.origin());
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  const auto refuse = [](bool is_wrong, const char* what) {
    if (is_wrong) throw base::ConfigError("model.{}: kimi_linear has no such thing in Hugging Face's form", what);
  };
  refuse(c.linear_attention != "kda", "linear_attention");
  refuse(c.feature_map != "l2", "feature_map");
  refuse(!c.linear_output_gate, "linear_output_gate = false");
  refuse(c.attention_bias, "attention_bias = true");
  refuse(c.short_convolution < 1, "short_convolution = 0");
  refuse(c.resolved_linear_key_heads() != c.resolved_linear_heads(), "linear_key_heads");
  const int64_t dim = c.resolved_linear_key_dim();
  refuse(c.resolved_linear_value_dim() != dim, "linear_value_dim that is not linear_key_dim");
  refuse(c.gate_rank != dim || c.output_gate_rank != dim, "gate_rank or output_gate_rank that is not linear_key_dim");
  refuse(c.shared_expert_ffn % c.expert_ffn != 0, "shared_expert_ffn that is no multiple of expert_ffn");
  auto common = c;  // without what is this family's own
  for (int64_t layer = 0; layer < c.layers; ++layer) refuse(c.layer_type(layer) != "nope", "layer_types other than nope");
  common.layer_types.clear();
  auto document = llama_attention_to_hugging_face(common);
  document.erase("rope_parameters");
  document["model_type"] = "kimi_linear";
  document["architectures"] = {"KimiLinearForCausalLM"};
  document["rope_theta"] = c.rope_base;
  document["rope_scaling"] = nullptr;
  json kda = json::array(), full = json::array();
  for (int64_t layer = 0; layer < c.layers; ++layer)
    (c.layer_pattern[static_cast<size_t>(layer) % c.layer_pattern.size()] == 'L' ? kda : full).push_back(layer + 1);
  document["linear_attn_config"] = {{"kda_layers", kda},
                                    {"full_attn_layers", full},
                                    {"head_dim", dim},
                                    {"num_heads", c.resolved_linear_heads()},
                                    {"short_conv_kernel_size", c.short_convolution}};
  document["mla_use_nope"] = true;
  document["head_dim"] = c.hidden / c.heads;
  document["qk_rope_head_dim"] = c.rope_head_dim;
  document["qk_nope_head_dim"] = c.resolved_head_dim() - c.rope_head_dim;
  document["v_head_dim"] = c.resolved_value_head_dim();
  document["kv_lora_rank"] = c.kv_rank;
  document["q_lora_rank"] = c.query_rank > 0 ? json(c.query_rank) : json();
  document["intermediate_size"] = c.ffn;
  document["first_k_dense_replace"] = c.first_dense_layers;
  document["moe_layer_freq"] = 1;
  document["num_experts"] = c.experts;
  document["num_experts_per_token"] = c.top_k;
  document["moe_intermediate_size"] = c.expert_ffn;
  document["num_shared_experts"] = c.shared_expert_ffn / c.expert_ffn;
  document["moe_router_activation_func"] = c.router_score;
  document["moe_renormalize"] = c.norm_topk_prob;
  document["routed_scaling_factor"] = c.router_scale;
  document["use_grouped_topk"] = true;
  document["num_expert_group"] = c.router_groups;
  document["topk_group"] = c.router_top_groups;
  document["num_nextn_predict_layers"] = 0;
  return document;
}

// ---- tensors ----

std::vector<StoredPiece> stored_linear(const Parameter& p, const std::string& layer, const std::string& name) {
  const auto named = [&](const std::string& other, const tensor::Shape& shape) {
    return std::vector<StoredPiece>{{layer + ".self_attn." + other, shape}};
  };
  if (name == "gate_in_proj.weight") return named("f_a_proj.weight", p.shape);
  if (name == "gate_out_proj.weight") return named("f_b_proj.weight", p.shape);
  if (name == "gate_out_proj.bias") return named("dt_bias", p.shape);
  if (name == "gate_rate") return named("A_log", {1, 1, p.shape[0], 1});
  if (name == "beta_proj.weight") return named("b_proj.weight", p.shape);
  if (name == "output_gate_in_proj.weight") return named("g_a_proj.weight", p.shape);
  if (name == "output_gate_proj.weight") return named("g_b_proj.weight", p.shape);
  return named(name, p.shape);
}

std::vector<StoredPiece> stored(const ModelConfig& c, const Parameter& p) {
  const std::string linear = ".linear_attn.";
  if (const auto at = p.name.find(linear); at != std::string::npos)
    return stored_linear(p, p.name.substr(0, at), p.name.substr(at + linear.size()));
  if (is_turned(p)) return stored_turned(c, p);
  // A dense layer's MLP keeps its name.
  const bool is_of_mixture = p.name.find(".mlp.gate.") != std::string::npos || p.name.find(".mlp.experts.") != std::string::npos ||
                             p.name.find(".mlp.shared_experts.") != std::string::npos;
  if (!is_of_mixture) return stored_whole(p);
  auto pieces = stored_as_mixtral(c, p);
  name_correction_bias(pieces);
  return pieces;
}

void small(ModelConfig& c) {
  c.kv_heads = c.heads, c.head_dim = 6, c.rope_head_dim = 2, c.value_head_dim = 3, c.kv_rank = 10, c.layer_types = {"nope"};
  c.linear_attention = "kda", c.feature_map = "l2", c.linear_heads = c.heads / 2, c.linear_key_dim = c.linear_value_dim = 6;
  c.gate_rank = c.output_gate_rank = 6, c.tie_embeddings = false;
  c.router_score = "sigmoid", c.shared_expert_ffn = c.expert_ffn, c.first_dense_layers = 1;
}

}  // namespace

Family kimi_linear_family() {
  return {.name = "kimi_linear",
          .hugging_face_type = "kimi_linear",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .stored = stored,
          .small = small};
}

}  // namespace ingot::models
