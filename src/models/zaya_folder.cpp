#include "models/zaya_folder.h"

#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "models/config.h"
#include "models/hugging_face_config.h"

namespace ingot::models {

using base::ModelError;
using layers::Parameter;
using nlohmann::json;

namespace {

enum Stage : size_t { attention = 0, moe = 1 };

// A whole number of all stages of a kind: a scalar, or a list that may be longer than the model, as published ones are.
std::optional<int64_t> of_stages(const json& config, const char* name, Stage kind, int64_t stages) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return {};
  if (!found->is_array()) return HuggingFaceFields(config).integer(name);
  if (static_cast<int64_t>(found->size()) < stages)
    throw ModelError("{}: {} has {} entries for {} stages", HuggingFaceFields::origin(), name, found->size(), stages);
  const auto& first = (*found)[kind];
  for (size_t stage = kind; stage < static_cast<size_t>(stages); stage += 2) {
    const auto& one = (*found)[stage];
    if (!one.is_number_integer() || one != first)
      throw ModelError("{}: {} is {} in stage {} and {} in stage {}; layers are alike here", HuggingFaceFields::origin(), name,
                       first.dump(), static_cast<size_t>(kind), one.dump(), stage);
  }
  return first.get<int64_t>();
}

int64_t number_of_stages(const json& config) {
  const HuggingFaceFields fields(config);
  const auto found = config.find("zaya_layers");
  const bool has_list = found != config.end() && found->is_array();
  // num_hidden_layers is stale beside a list (120 for 80 in ZAYA1-base).
  const int64_t stages = has_list ? static_cast<int64_t>(found->size()) : fields.integer("num_hidden_layers");
  if (stages < 2 || stages % 2 != 0)
    throw ModelError("{}: {} stages are no layers of attention and MoE", HuggingFaceFields::origin(), stages);
  for (size_t stage = 0; has_list && stage < found->size(); ++stage) {
    const auto& kind = (*found)[stage];
    if (stage % 2 == attention ? kind != "a" : !kind.is_number_integer())
      throw ModelError("{}: stage {} of zaya_layers is {}; attention ('a') and experts (their number) take turns here",
                       HuggingFaceFields::origin(), stage, kind.dump());
  }
  return stages;
}

void refuse_switches(const json& config) {
  const HuggingFaceFields fields(config);
  for (const char* name : {"cca", "zaya_use_eda", "scale_residual_merge", "gated_linear_unit"})
    if (!fields.boolean(name, true))
      throw ModelError("{}: {} = false is not supported for this model type", HuggingFaceFields::origin(), name);
  for (const char* name : {"clamp_temp", "add_bias_linear", "activation_func_fp8_input_store", "attention_bias", "lm_head_bias"})
    fields.refuse_if_true(name);
  fields.refuse_unless("normalization", "RMSNorm");
  fields.refuse_unless("activation_func", "swiglu");
  if (fields.has("sliding_window")) throw ModelError("{}: sliding_window is not supported in this form", HuggingFaceFields::origin());
  for (const char* name : {"swa_layers", "swa_rotary_base"}) {
    const auto found = config.find(name);
    if (found == config.end() || found->is_null() || *found == false) continue;
    const bool slides = !found->is_array() || std::any_of(found->begin(), found->end(), [](const json& window) { return window != 0; });
    if (slides)
      throw ModelError("{}: {}: sliding windows are read in transformers' form alone (layer_types, sliding_window)",
                       HuggingFaceFields::origin(), name);
  }
}

int64_t required(std::optional<int64_t> value, const char* name) {
  if (!value) throw ModelError("{}: the field {} is missing", HuggingFaceFields::origin(), name);
  return *value;
}

// One of several names of the same number.
json first_of(const json& config, std::initializer_list<const char*> names, const json& otherwise) {
  for (const char* name : names)
    if (const auto found = config.find(name); found != config.end() && !found->is_null()) return *found;
  return otherwise;
}

}  // namespace

bool is_staged_zaya(const json& config) {
  const std::array marks = {"zaya_layers", "zaya_mlp_expansion", "ffn_hidden_size", "ffn_hidden_size_list", "activation_func"};
  return config.is_object() && std::any_of(marks.begin(), marks.end(), [&](const char* mark) { return config.contains(mark); });
}

json unstaged_zaya(const json& config) {
  refuse_switches(config);
  const HuggingFaceFields fields(config);
  const int64_t stages = number_of_stages(config), hidden = fields.integer("hidden_size");
  const auto of = [&](const char* name, Stage kind) { return of_stages(config, name, kind, stages); };

  // Beside the list of them, num_attention_heads counts those of an uncompressed model, of which only the head's width is taken.
  const auto listed_heads = of("cca_num_q_heads", attention);
  const int64_t given_heads = fields.integer("num_attention_heads"), heads = listed_heads.value_or(given_heads);
  if (given_heads < 1) throw ModelError("{}: num_attention_heads is {}", HuggingFaceFields::origin(), given_heads);
  const auto head_dim = first_of(config, {"head_dim", "kv_channels"}, hidden / given_heads);

  std::optional<int64_t> kv_heads;
  for (const char* name : {"num_query_groups_list", "num_query_groups", "num_key_value_heads"}) {
    const auto own = of(name, attention);
    if (own && kv_heads && *own != *kv_heads)
      throw ModelError("{}: {} = {} contradicts {} query groups", HuggingFaceFields::origin(), name, *own, *kv_heads);
    if (own) kv_heads = own;
  }
  auto ffn = of("ffn_hidden_size_list", moe);
  if (!ffn) ffn = of("ffn_hidden_size", moe);
  auto experts = of("zaya_layers", moe);
  if (!experts) experts = fields.integer("num_experts");
  if (required(ffn, "ffn_hidden_size") % 2 != 0)
    throw ModelError("{}: ffn_hidden_size = {} is of the gate and up together, and must be even", HuggingFaceFields::origin(), *ffn);

  const auto rope = json{{"rope_theta", first_of(config, {"rope_theta", "rotary_base"}, json())},
                         {"partial_rotary_factor", first_of(config, {"partial_rotary_factor", "rope_pct"}, 0.5)}};
  if (rope.at("rope_theta").is_null()) throw ModelError("{}: the field rope_theta is missing", HuggingFaceFields::origin());
  json plain = {{"model_type", "zaya"},
                {"num_hidden_layers", stages / 2},
                {"num_attention_heads", heads},
                {"num_key_value_heads", required(kv_heads, "num_key_value_heads")},
                {"head_dim", head_dim},
                {"num_experts", *experts},
                {"num_experts_per_tok", fields.integer("moe_router_topk", 1)},
                {"moe_intermediate_size", *ffn / 2},
                {"router_hidden_size", required(of("zaya_mlp_expansion", moe), "zaya_mlp_expansion")},
                {"rms_norm_eps", fields.number("norm_epsilon", 1e-5)},
                {"tie_word_embeddings", fields.boolean("tie_word_embeddings", true)},
                {"rope_parameters", {{"hybrid", rope}}}};
  for (const char* same : {"hidden_size", "vocab_size", "max_position_embeddings", "initializer_range", "pad_token_id", "bos_token_id",
                           "eos_token_id", "cca_time0", "cca_time1", "quantization_config", "rope_scaling"})
    if (config.contains(same)) plain[same] = config.at(same);
  return plain;
}

namespace {

struct Renamed {
  const char *ours, *theirs;
};
// Behind model.layers.L. and model.layers.(2L or 2L + 1)., as the beginning of a name.
constexpr Renamed kAttention[] = {{"input_layernorm.", "input_norm."},
                                  {"self_attn.qkv_proj.q_proj.", "self_attn.qkv.linear_q."},
                                  {"self_attn.qkv_proj.k_proj.", "self_attn.qkv.linear_k."},
                                  {"self_attn.qkv_proj.v_proj_current.", "self_attn.qkv.val_proj1."},
                                  {"self_attn.qkv_proj.v_proj_delayed.", "self_attn.qkv.val_proj2."},
                                  {"self_attn.qkv_proj.conv_qk_depthwise.", "self_attn.qkv.conv_qk.0."},
                                  {"self_attn.qkv_proj.conv_qk_grouped.", "self_attn.qkv.conv_qk.1."},
                                  {"self_attn.qk_norm.temp", "self_attn.qkv.temp"},
                                  {"self_attn.o_proj.", "self_attn.o_proj."}};
constexpr Renamed kMoe[] = {{"post_attention_residual_scale.", "res_scale."},
                            {"post_attention_layernorm.", "input_norm."},
                            {"mlp.gate.router_mlp.norm.", "zaya_block.router.rmsnorm_eda."},
                            {"mlp.gate.router_mlp.fc1.", "zaya_block.router.router_mlp.0."},
                            {"mlp.gate.router_mlp.fc2.", "zaya_block.router.router_mlp.2."},
                            {"mlp.gate.router_mlp.out_proj.", "zaya_block.router.router_mlp.4."},
                            {"mlp.gate.", "zaya_block.router."}};

std::string renamed(const Renamed& rule, const std::string& name) { return rule.theirs + name.substr(std::string_view(rule.ours).size()); }

std::string in_layer(int64_t layers, int64_t layer, const std::string& name) {
  const auto stage = [](int64_t number) { return "model.layers." + std::to_string(number) + "."; };
  for (const auto& rule : kAttention)
    if (name.starts_with(rule.ours)) return stage(2 * layer) + renamed(rule, name);
  for (const auto& rule : kMoe)
    if (name.starts_with(rule.ours)) return stage(2 * layer + 1) + renamed(rule, name);
  // Scales lie with the stage that reads the stream.
  const Renamed next = {"post_mlp_residual_scale.", "res_scale."};
  if (name.starts_with(next.ours)) return (layer + 1 < layers ? stage(2 * layer + 2) : "model.") + renamed(next, name);
  throw ModelError("model.layers.{}.{} has no name in ZAYA1's older form", layer, name);
}

}  // namespace

std::vector<StoredPiece> stored_staged_zaya(const ModelConfig& c, const Parameter& p) {
  const std::string layers = "model.layers.", input = "model.input_";
  if (p.name == "model.norm.weight") return {{kStagedZayaMark, p.shape}};
  if (p.name.starts_with(input)) return {{layers + "0.res_scale." + p.name.substr(input.size()), p.shape}};
  if (!p.name.starts_with(layers)) return stored_whole(p);
  const auto dot = p.name.find('.', layers.size());
  const int64_t layer = std::stoll(p.name.substr(layers.size(), dot - layers.size()));
  const auto name = p.name.substr(dot + 1);
  const bool is_up = name == "mlp.experts.gate_up_proj";
  if (!is_up && name != "mlp.experts.down_proj") return {{in_layer(c.layers, layer, name), p.shape}};
  std::vector<StoredPiece> stored;
  for (int64_t expert = 0; expert < c.experts; ++expert)
    stored.push_back(
        {fmt::format("{}{}.zaya_block.experts.local_experts.{}.linear_{}.weight", layers, 2 * layer + 1, expert, is_up ? "fc1" : "fc2"),
         {p.shape[1], p.shape[2]},
         [expert](const at::Tensor& whole) { return whole[expert]; }});
  return stored;
}

bool is_state_of_staged_zaya(const std::string& tensor) {
  return tensor.ends_with(".balance_m") || tensor.ends_with(".balance_v") || tensor.ends_with(".balance_step");
}

}  // namespace ingot::models
