// Qwen3-Next: gated delta rules in most layers and gated attention in the others, each before a mixture with a shared expert; norms of
// 1 + weight. Folders keep what a group of linear attention's heads reads in one run of rows.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/llama_like.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

using layers::Parameter;
using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig& c) {
  std::vector<LayerParts> pattern;
  for (const Mixer mixer : mixers_of_pattern(c))
    pattern.push_back({.mixer = mixer,
                       .feed_forward = FeedForwardKind::moe,
                       .qk_norm = QkNorm::head,
                       .is_gated = true,
                       .linear = {.shares_norm = true, .scales_queries = true},
                       .norm_weight = NormWeight::zero_centred,
                       .gates_shared_expert = true});
  return pattern;
}

ModelConfig from_hugging_face(const json& document) {
  const HuggingFaceFields fields(document);
  ModelConfig c = fields.common();
  c.family = "qwen3_next";
  // transformers' defaults, from here on.
  if (c.head_dim == 0) c.head_dim = 256;
  c.linear_attention = "gated_delta", c.feature_map = "l2", c.linear_output_gate = true;
  c.linear_heads = fields.integer("linear_num_value_heads", 32);
  c.linear_key_heads = fields.integer("linear_num_key_heads", 16);
  c.linear_key_dim = fields.integer("linear_key_head_dim", 128);
  c.linear_value_dim = fields.integer("linear_value_head_dim", 128);
  c.short_convolution = fields.integer("linear_conv_kernel_dim", 4);
  c.experts = fields.has("num_experts") ? fields.integer("num_experts") : fields.integer("num_local_experts", 512);
  c.top_k = fields.integer("num_experts_per_tok", 10);
  c.norm_topk_prob = fields.boolean("norm_topk_prob", true);
  c.expert_ffn = fields.integer("moe_intermediate_size", 512);
  c.shared_expert_ffn = fields.integer("shared_expert_intermediate_size", 512);
  c.ffn = fields.integer("intermediate_size", 5632);
  fields.refuse_unless("hidden_act", "silu");
  fields.refuse_if_true("attention_bias");
  refuse_dense_layers(fields, document);
  const auto types = document.find("layer_types");
  if (types != document.end() && types->is_array()) {
    if (static_cast<int64_t>(types->size()) != c.layers)
      throw base::ModelError("{}: layer_types has {} entries for {} layers", fields.origin(), types->size(), c.layers);
    c.layer_pattern.clear();
    for (const auto& type : *types) {
      if (type != "linear_attention" && type != "full_attention")
        throw base::ModelError("{}: layer type {} is not known for this model type", fields.origin(), type.dump());
      c.layer_pattern += type == "linear_attention" ? 'L' : 'N';
    }
  } else {
    const int64_t interval = fields.integer("full_attention_interval", 4);
    if (interval < 1) throw base::ModelError("{}: full_attention_interval = {} is not positive", fields.origin(), interval);
    c.layer_pattern = std::string(static_cast<size_t>(interval - 1), 'L') + "N";
  }
  auto rope = fields.rope();
  if (!rope.contains("partial_rotary_factor")) rope["partial_rotary_factor"] = 0.25;
  fields.read_rope(c, rope);
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  const auto refuse = [](bool is_wrong, const char* what) {
    if (is_wrong) throw base::ConfigError("model.{}: qwen3_next has no such thing in Hugging Face's form", what);
  };
  refuse(c.linear_attention != "gated_delta", "linear_attention");
  refuse(c.feature_map != "l2", "feature_map");
  refuse(!c.linear_output_gate, "linear_output_gate = false");
  refuse(c.attention_bias, "attention_bias = true");
  refuse(c.short_convolution < 1, "short_convolution = 0");
  refuse(c.shared_expert_ffn < 1, "shared_expert_ffn = 0");
  refuse(c.mtp_layers > 1, "mtp_layers > 1");
  auto common = c;  // without what is this family's own
  common.mtp_layers = 0;
  auto document = llama_attention_to_hugging_face(common);
  document["model_type"] = "qwen3_next";
  document["architectures"] = {"Qwen3NextForCausalLM"};
  document["rope_parameters"]["partial_rotary_factor"] = c.rope_fraction;  // absent it is 0.25
  document["linear_num_value_heads"] = c.resolved_linear_heads();
  document["linear_num_key_heads"] = c.resolved_linear_key_heads();
  document["linear_key_head_dim"] = c.resolved_linear_key_dim();
  document["linear_value_head_dim"] = c.resolved_linear_value_dim();
  document["linear_conv_kernel_dim"] = c.short_convolution;
  document["num_experts"] = c.experts;
  document["num_experts_per_tok"] = c.top_k;
  document["norm_topk_prob"] = c.norm_topk_prob;
  document["moe_intermediate_size"] = c.expert_ffn;
  document["shared_expert_intermediate_size"] = c.shared_expert_ffn;
  document["intermediate_size"] = c.ffn > 0 ? c.ffn : c.expert_ffn;
  document["decoder_sparse_step"] = 1;
  document["mlp_only_layers"] = document["layer_types"] = json::array();
  for (int64_t layer = 0; layer < c.layers; ++layer)
    document["layer_types"].push_back(c.layer_pattern[static_cast<size_t>(layer) % c.layer_pattern.size()] == 'L' ? "linear_attention"
                                                                                                                  : "full_attention");
  return document;
}

// `rows` neighbouring rows of each of `groups` groups of a folder's tensor, from `from` on in a group of `of_group`: a parameter's rows.
StoredPiece in_groups(const Parameter& p, std::string name, int64_t groups, int64_t of_group, int64_t from, int64_t rows) {
  tensor::Shape shape = p.shape;
  shape[0] = groups * of_group;
  return {.name = std::move(name),
          .shape = std::move(shape),
          .part =
              [=](const at::Tensor& whole) {
                return whole.unflatten(0, {groups, rows});
              },
          .place =
              [=](const at::Tensor& stored) {
                return stored.unflatten(0, {groups, of_group}).narrow(1, from, rows);
              }};
}

std::vector<StoredPiece> stored_linear(const ModelConfig& c, const Parameter& p, const std::string& prefix, const std::string& name) {
  const int64_t groups = c.resolved_linear_key_heads(), each = c.resolved_linear_heads() / groups;
  const int64_t key = c.resolved_linear_key_dim(), value = each * c.resolved_linear_value_dim(), all = 2 * (key + value);
  const auto of_stream = [&](int64_t from, int64_t rows) {
    return std::vector{in_groups(p, prefix + "in_proj_qkvz.weight", groups, all, from, rows)};
  };
  if (name == "q_proj.weight") return of_stream(0, key);
  if (name == "k_proj.weight") return of_stream(key, key);
  if (name == "v_proj.weight") return of_stream(2 * key, value);
  if (name == "output_gate_proj.weight") return of_stream(2 * key + value, value);
  const auto of_gates = [&](int64_t from) { return std::vector{in_groups(p, prefix + "in_proj_ba.weight", groups, 2 * each, from, each)}; };
  if (name == "beta_proj.weight") return of_gates(0);
  if (name == "gate_proj.weight") return of_gates(each);
  const int64_t keys = groups * key, channels = 2 * keys + groups * value;
  const auto of_convolution = [&](int64_t from) {
    return std::vector{in_groups(p, prefix + "conv1d.weight", 1, channels, from, p.shape[0])};
  };
  if (name == "q_conv1d.weight") return of_convolution(0);
  if (name == "k_conv1d.weight") return of_convolution(keys);
  if (name == "v_conv1d.weight") return of_convolution(2 * keys);
  const auto named = [&](const char* other) { return std::vector<StoredPiece>{{prefix + other, p.shape}}; };
  if (name == "step_bias") return named("dt_bias");
  if (name == "gate_rate") return named("A_log");
  if (name == "o_norm.weight") return named("norm.weight");
  if (name == "o_proj.weight") return named("out_proj.weight");
  return stored_whole(p);
}

std::vector<StoredPiece> stored_block(const ModelConfig& c, const Parameter& p) {
  const std::string linear = ".linear_attn.";
  if (const auto at = p.name.find(linear); at != std::string::npos)
    return stored_linear(c, p, p.name.substr(0, at + linear.size()), p.name.substr(at + linear.size()));
  const int64_t d = c.resolved_head_dim();
  if (const auto at = p.name.find(".self_attn."); at != std::string::npos) {
    const auto of_query = [&](int64_t from) {
      return std::vector{in_groups(p, p.name.substr(0, at) + ".self_attn.q_proj.weight", c.heads, 2 * d, from, d)};
    };
    if (p.name.ends_with(".q_proj.weight")) return of_query(0);
    if (p.name.ends_with(".gate_proj.weight")) return of_query(d);
  }
  auto pieces = stored_by_expert(c, p);
  const std::string shared = ".mlp.shared_experts.";
  if (const auto at = pieces[0].name.find(shared); at != std::string::npos)
    pieces[0].name.replace(at, shared.size(), ".mlp.shared_expert.");
  return pieces;
}

// The predictor lies apart.
std::vector<StoredPiece> stored(const ModelConfig& c, const Parameter& p) {
  auto pieces = stored_block(c, p);
  const std::string predictor = fmt::format("model.layers.{}.", c.layers);
  for (auto& piece : pieces) {
    if (!piece.name.starts_with(predictor)) continue;
    const auto rest = piece.name.substr(predictor.size());
    if (rest == "enorm.weight") piece.name = "mtp.pre_fc_norm_embedding.weight";
    else if (rest == "hnorm.weight") piece.name = "mtp.pre_fc_norm_hidden.weight";
    else if (rest == "eh_proj.weight") piece.name = "mtp.fc.weight";
    else if (rest == "shared_head.norm.weight") piece.name = "mtp.norm.weight";
    else piece.name = "mtp.layers.0." + rest;
  }
  return pieces;
}

// Of a predictor that is not taken; transformers leaves it aside as well.
bool is_ignored(const ModelConfig& c, const std::string& name) { return name.starts_with("mtp.") && c.mtp_layers == 0; }

void small(ModelConfig& c) {
  c.linear_heads = c.heads, c.linear_key_heads = c.heads / 2, c.linear_key_dim = 6, c.linear_value_dim = 5, c.shared_expert_ffn = 12;
}

}  // namespace

Family qwen3_next_family() {
  return {.name = "qwen3_next",
          .hugging_face_type = "qwen3_next",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .stored = stored,
          .is_ignored = is_ignored,
          .small = small};
}

}  // namespace ingot::models
