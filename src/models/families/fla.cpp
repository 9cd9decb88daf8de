// Six models of flash-linear-attention (fla; github.com/fla-org/flash-linear-attention): layers of one variant of linear attention, and in
// hybrids some of softmax attention. Which of its model types a model is follows from the variant; each names its settings in its own way.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "models/family.h"
#include "models/hugging_face_config.h"
#include "models/llama_like.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

using base::ConfigError;
using base::ModelError;
using layers::Parameter;
using nlohmann::json;

constexpr int64_t kGateRank = 16;  // of gla's gates; fla has no setting for it

// A setting that has one value here, and why.
struct Fixed {
  const char* name;
  json value;
  const char* reason;
};

struct Form {
  std::string type, architecture, variant;        // model_type; architectures; model.linear_attention
  std::map<std::string, std::string> maps;        // feature_map of the file -> model.feature_map; "": null, or not there
  bool has_feature_map = true;                    // a setting of the file; else the only one of `maps`
  double expand_key = 1, expand_value = 1;        // fla's defaults of expand_k, expand_v
  bool has_head_dim = false;                      // in place of expand_k
  bool has_convolution = true, convolves = true;  // a setting of the file; its default
  std::string gate{};                             // the setting of the output gate; "": has none
  bool is_gated = true;                           // its default; without the setting whether there is one
  int64_t head_dim = 256;                         // fla's default
  std::vector<Fixed> fixed{};
};

constexpr const char* kSilu = "SiLU of q, k and v is a part of the short convolution";
constexpr const char* kBeta = "beta is a sigmoid, not twice one";
constexpr const char* kFloor = "gates have no lower bound";
constexpr const char* kSums = "q and k are not divided by their sums";

Form gla() {
  return {.type = "gla",
          .architecture = "GLAForCausalLM",
          .variant = "diagonal_gate",
          .maps = {{"", "identity"}, {"relu", "relu"}, {"silu", "silu"}, {"swish", "silu"}},
          .expand_key = 0.5,
          .convolves = false,
          .gate = "use_output_gate",
          .fixed = {{"clamp_min", nullptr, "gates are not clamped"},
                    {"use_gk", true, "a gate belongs to a key channel"},
                    {"use_gv", false, "a gate belongs to a key channel"},
                    {"gate_logit_normalizer", 16, "gates are log_sigmoid(x) / 16"},
                    {"gate_low_rank_dim", kGateRank, "fla does not read it"}}};
}

Form delta_net() {
  return {.type = "delta_net",
          .architecture = "DeltaNetForCausalLM",
          .variant = "delta",
          .maps = {{"", "l2"}},
          .has_feature_map = false,
          .gate = "use_gate",
          .is_gated = false,
          .fixed = {{"use_short_conv", true, kSilu},
                    {"qk_activation", "silu", kSilu},
                    {"qk_norm", "l2", "q and k are divided by their length"},
                    {"use_beta", true, "the delta rule has a beta for each token"},
                    {"use_output_norm", true, "the output is normed"},
                    {"allow_neg_eigval", false, kBeta}}};
}

Form gated_deltanet() {
  return {
      .type = "gated_deltanet",
      .architecture = "GatedDeltaNetForCausalLM",
      .variant = "gated_delta",
      .maps = {{"", "l2"}},
      .has_feature_map = false,
      .expand_value = 2,
      .has_head_dim = true,
      .gate = "use_gate",
      .fixed = {{"use_short_conv", true, kSilu}, {"use_mamba_gate", true, "its gates are Mamba-2's"}, {"allow_neg_eigval", false, kBeta}}};
}

Form linear_attn() {
  return {.type = "linear_attn",
          .architecture = "LinearAttentionForCausalLM",
          .variant = "basic",
          .maps = {{"elu", "elu"}, {"relu", "relu"}, {"identity", "identity"}},
          .has_convolution = false,
          .convolves = false,
          .is_gated = false,
          .fixed = {{"norm_q", false, kSums},
                    {"norm_k", false, kSums},
                    {"norm_feature_map", false, "the output is normed, not divided by a sum of keys"}}};
}

Form retnet() {
  return {.type = "retnet",
          .architecture = "RetNetForCausalLM",
          .variant = "retnet",
          .maps = {{"", "identity"}, {"relu", "relu"}, {"silu", "silu"}, {"swish", "silu"}},
          .expand_value = 2,
          .has_convolution = false,  // fla does not read use_short_conv
          .convolves = false,
          .gate = "use_output_gate"};
}

Form kda() {
  return {.type = "kda",
          .architecture = "KDAForCausalLM",
          .variant = "kda",
          .maps = {{"", "l2"}},
          .has_feature_map = false,
          .has_head_dim = true,
          .head_dim = 128,
          .fixed = {{"use_short_conv", true, kSilu},
                    {"allow_neg_eigval", false, kBeta},
                    {"safe_gate", false, kFloor},
                    {"lower_bound", nullptr, kFloor}}};
}

const std::vector<Form>& forms() {
  static const std::vector<Form> all = {gla(), delta_net(), gated_deltanet(), linear_attn(), retnet(), kda()};
  return all;
}

std::vector<LayerParts> parts(const ModelConfig& c) {
  std::vector<LayerParts> pattern;
  for (const Mixer mixer : mixers_of_pattern(c))
    pattern.push_back({.mixer = mixer,
                       .linear = {.shares_norm = true,
                                  .scales_queries = true,
                                  .has_sigmoid_gate = c.linear_attention == "kda",
                                  .has_gate_bias = c.linear_attention == "kda",
                                  .rotates = c.linear_attention == "retnet"}});
  return pattern;
}

// ---- config.json, read ----

void check_fixed(const json& document, const std::vector<Fixed>& all) {
  for (const auto& [name, value, reason] : all)
    if (const auto found = document.find(name); found != document.end() && *found != value)
      throw ModelError("{}: {} = {} is not supported for this model type, {} is: {}", HuggingFaceFields::origin(), name, found->dump(),
                       value.dump(), reason);
}

// What fla names otherwise than Llama, and its defaults.
ModelConfig read_common(json document) {
  document["num_attention_heads"] = document.value("num_heads", json());
  document["rms_norm_eps"] = document.value("norm_eps", json(1e-6));
  document["num_key_value_heads"] = document["head_dim"] = nullptr;
  if (!document.contains("bos_token_id")) document["bos_token_id"] = 1;
  if (!document.contains("eos_token_id")) document["eos_token_id"] = 2;
  return HuggingFaceFields(document).common();
}

// `ratio` times `of` in `heads` equal parts.
int64_t width_of_head(const HuggingFaceFields& fields, const char* ratio, double otherwise, int64_t of, int64_t heads) {
  const double width = fields.number(ratio, otherwise) * static_cast<double>(of);
  const bool is_possible = heads > 0 && width > 0.5 && width < double{1 << 30};
  const int64_t whole = is_possible ? std::llround(width) : 0;
  if (whole < 1 || std::abs(width - static_cast<double>(whole)) > 1e-9 * width || whole % heads != 0)
    throw ModelError("{}: {} = {} of {} channels is {}, which {} heads cannot share", HuggingFaceFields::origin(), ratio,
                     fields.number(ratio, otherwise), of, width, heads);
  return whole / heads;
}

void read_heads(const HuggingFaceFields& fields, const Form& form, ModelConfig& c) {
  const int64_t heads = c.linear_heads = fields.integer("num_heads");
  if (form.has_head_dim) {
    c.linear_heads = fields.integer("num_v_heads", heads);
    if (c.linear_heads != heads) c.linear_key_heads = heads;
    c.linear_key_dim = fields.integer("head_dim", form.head_dim);
    c.linear_value_dim = width_of_head(fields, "expand_v", form.expand_value, c.linear_key_dim, 1);
    return;
  }
  if (const int64_t of_keys = fields.integer("num_kv_heads", heads); of_keys != heads)
    throw ModelError("{}: num_kv_heads = {} is not supported for this model type: each of {} heads of queries has keys of its own",
                     fields.origin(), of_keys, heads);
  c.linear_key_dim = width_of_head(fields, "expand_k", form.expand_key, c.hidden, heads);
  c.linear_value_dim = width_of_head(fields, "expand_v", form.expand_value, c.hidden, heads);
}

void read_linear(const HuggingFaceFields& fields, const Form& form, ModelConfig& c) {
  c.linear_attention = form.variant;
  read_heads(fields, form, c);
  c.gate_rank = kGateRank;
  if (form.variant == "kda") c.gate_rank = c.output_gate_rank = c.linear_value_dim;
  const auto name = form.has_feature_map ? fields.text("feature_map", "") : "";
  const auto map = form.maps.find(name);
  if (map == form.maps.end()) throw ModelError("{}: feature_map = '{}' is not supported for this model type", fields.origin(), name);
  c.feature_map = map->second;
  const bool convolves = form.has_convolution && fields.boolean("use_short_conv", form.convolves);
  c.short_convolution = convolves ? fields.integer("conv_size", 4) : 0;
  c.linear_output_gate = form.gate.empty() ? form.is_gated : fields.boolean(form.gate, form.is_gated);
  // The norms of these have another name where their gate is not fused with them.
  if ((form.variant == "diagonal_gate" || form.variant == "retnet") && c.linear_output_gate && !fields.boolean("fuse_norm", true))
    throw ModelError("{}: fuse_norm = false is not supported for this model type: norms are read as g_norm_swish_gate, not as g_norm",
                     fields.origin());
}

// The one kind of softmax attention that some of the layers have; null = none have.
json attention_of(const json& document) {
  auto attention = document.value("attn", json());
  if (attention.is_array() && attention.size() > 1)
    throw ModelError("{}: attn has {} kinds of attention; one is supported", HuggingFaceFields::origin(), attention.size());
  if (attention.is_array()) return attention.empty() ? json() : attention[0];
  return attention;
}

void read_pattern(const json& attention, ModelConfig& c) {
  const auto layers = attention.value("layers", json::array());
  c.layer_pattern = std::string(static_cast<size_t>(c.layers), 'L');
  for (const auto& number : layers) {
    const int64_t layer = number.is_number_integer() ? number.get<int64_t>() : -1;
    if (layer < 0 || layer >= c.layers)
      throw ModelError("{}: attn.layers has {}, which is no layer of {}", HuggingFaceFields::origin(), number.dump(), c.layers);
    c.layer_pattern[static_cast<size_t>(layer)] = 'N';
  }
}

void read_attention(const json& document, ModelConfig& c) {
  const auto attention = attention_of(document);
  if (attention.is_null()) {
    c.layer_pattern = "L";
    c.heads = c.kv_heads = c.linear_heads;
    c.head_dim = c.linear_key_dim + c.linear_key_dim % 2;  // no layer's; of an odd one RoPE could not rotate all
    return;
  }
  if (!attention.is_object() || c.layers < 1 || c.layers > 1'000'000)
    throw ModelError("{}: attn is not an object, or {} layers are not possible", HuggingFaceFields::origin(), c.layers);
  const HuggingFaceFields fields(attention);
  read_pattern(attention, c);
  c.heads = fields.integer("num_heads");
  c.kv_heads = fields.integer("num_kv_heads", c.heads);
  c.rope_base = fields.number("rope_theta", 10000);
  fields.refuse_if_true("qkv_bias");
  fields.refuse_if_true("qk_norm");
  if (!fields.has("window_size")) return;
  c.window = fields.integer("window_size");
  c.rope_base_sliding = c.rope_base;
  for (const char kind : c.layer_pattern) c.layer_types.emplace_back(kind == 'N' ? "sliding" : "full");
}

int64_t read_ffn(const HuggingFaceFields& fields, int64_t hidden) {
  if (fields.has("intermediate_size")) return fields.integer("intermediate_size");
  const double wanted = static_cast<double>(hidden) * fields.number("hidden_ratio", 4) * 2 / 3;
  if (wanted < 1 || wanted > double{1 << 30})
    throw ModelError("{}: hidden_ratio = {} of hidden_size = {} makes an MLP of {} channels, which is not possible", fields.origin(),
                     fields.number("hidden_ratio", 4), hidden, wanted);
  return (static_cast<int64_t>(wanted) + 255) / 256 * 256;
}

ModelConfig from_hugging_face(const json& document) {
  const HuggingFaceFields fields(document);
  const auto type = fields.text("model_type", "");
  const auto form = std::find_if(forms().begin(), forms().end(), [&](const Form& each) { return each.type == type; });
  if (form == forms().end()) throw ModelError("{}: model_type '{}' is not one of fla's that are known", fields.origin(), type);
  check_fixed(document, {{"hidden_act", "swish", "gates are SiLU's"},
                         {"elementwise_affine", true, "norms have weights"},
                         {"conv_bias", false, "short convolutions have no bias"},
                         {"attnres_block_size", nullptr, "branches are added to the stream"},
                         {"use_l2warp", false, "the loss is cross-entropy alone"}});
  check_fixed(document, form->fixed);
  if (fields.text("output_gate_activation", "silu") != "silu")  // another name of swish
    fields.refuse_unless("output_gate_activation", "swish");
  auto c = read_common(document);
  c.family = "fla";
  c.ffn = read_ffn(fields, c.hidden);
  read_linear(fields, *form, c);
  read_attention(document, c);
  return c;
}

// ---- config.json, written ----

const Form& form_of(const ModelConfig& c) {
  std::vector<std::string> known;
  for (const auto& form : forms()) {
    if (form.variant == c.linear_attention) return form;
    known.push_back(form.variant);
  }
  throw ConfigError("model.linear_attention = {}: fla has no model type of it that ingot writes; of {} it has", c.linear_attention,
                    base::join(known, ", "));
}

void refuse(bool is_wrong, const Form& form, const char* what) {
  if (is_wrong) throw ConfigError("model.{}: fla's {} has no such thing", what, form.type);
}

void check_settings(const ModelConfig& c, const Form& form) {
  const bool is_known = std::any_of(form.maps.begin(), form.maps.end(), [&](const auto& map) { return map.second == c.feature_map; });
  refuse(!is_known, form, "feature_map");
  const int64_t rank = form.variant == "kda" ? c.resolved_linear_value_dim() : 0;
  refuse(c.output_gate_rank != rank, form, rank > 0 ? "output_gate_rank other than linear_value_dim" : "output_gate_rank");
  refuse(rank > 0 && c.gate_rank != rank, form, "gate_rank other than linear_value_dim");
  refuse(c.attention_bias || c.mlp_bias, form, "attention_bias and mlp_bias");
  refuse(!form.has_head_dim && c.resolved_linear_key_heads() != c.resolved_linear_heads(), form, "linear_key_heads");
  refuse(form.variant == "diagonal_gate" && c.gate_rank != kGateRank, form, "gate_rank other than 16");
  refuse(form.gate.empty() && c.linear_output_gate != form.is_gated, form,
         form.is_gated ? "linear_output_gate = false" : "linear_output_gate");
  refuse(!form.has_convolution && c.short_convolution > 0, form, "short_convolution");
  refuse(form.convolves && c.short_convolution < 1, form, "short_convolution = 0");
}

json attention_written(const ModelConfig& c, const Form& form) {
  json layers = json::array();
  int64_t sliding = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    if (c.layer_pattern[static_cast<size_t>(layer) % c.layer_pattern.size()] == 'L') continue;
    layers.push_back(layer);
    sliding += c.is_sliding(layer) ? 1 : 0;
  }
  if (layers.empty()) return nullptr;
  refuse(sliding > 0 && sliding < static_cast<int64_t>(layers.size()), form, "layer_types with a window in some of the softmax layers");
  refuse(sliding > 0 && c.rope_base_sliding != c.rope_base, form, "rope_base_sliding");
  refuse(c.rope_scaling != "none" || c.rope_fraction != 1, form, "rope_scaling and rope_fraction");
  refuse(c.resolved_head_dim() * c.heads != c.hidden, form, "head_dim other than hidden / heads");
  return {{"layers", std::move(layers)}, {"num_heads", c.heads},      {"num_kv_heads", c.kv_heads},
          {"qkv_bias", false},           {"rope_theta", c.rope_base}, {"window_size", sliding > 0 ? json(c.window) : json()}};
}

void write_linear(json& document, const ModelConfig& c, const Form& form) {
  const int64_t heads = c.resolved_linear_heads(), key_heads = c.resolved_linear_key_heads();
  const auto ratio = [](int64_t width, int64_t of) { return static_cast<double>(width) / static_cast<double>(of); };
  document["num_heads"] = key_heads;
  if (form.has_head_dim) {
    document["head_dim"] = c.resolved_linear_key_dim();
    document["num_v_heads"] = heads != key_heads ? json(heads) : json();
    document["expand_v"] = ratio(c.resolved_linear_value_dim(), c.resolved_linear_key_dim());
  } else {
    document["expand_k"] = ratio(heads * c.resolved_linear_key_dim(), c.hidden);
    document["expand_v"] = ratio(heads * c.resolved_linear_value_dim(), c.hidden);
  }
  if (form.has_feature_map) {
    const auto map = std::find_if(form.maps.begin(), form.maps.end(), [&](const auto& each) { return each.second == c.feature_map; });
    document["feature_map"] = map->first.empty() ? json() : json(map->first);
  }
  if (form.has_convolution) {
    document["use_short_conv"] = c.short_convolution > 0;
    document["conv_size"] = c.short_convolution > 0 ? c.short_convolution : 4;
  }
  if (!form.gate.empty()) document[form.gate] = c.linear_output_gate;
}

json to_hugging_face(const ModelConfig& c) {
  const auto& form = form_of(c);
  check_settings(c, form);
  auto document = common_hugging_face_config(c);
  for (const char* of_llama : {"num_attention_heads", "num_key_value_heads", "head_dim", "rms_norm_eps", "attention_dropout"})
    document.erase(of_llama);
  document["model_type"] = form.type;
  document["architectures"] = {form.architecture};
  document["norm_eps"] = c.norm_eps;
  document["intermediate_size"] = c.ffn;
  document["hidden_act"] = "swish";
  document["fuse_norm"] = true;
  write_linear(document, c, form);
  document["attn"] = attention_written(c, form);
  return document;
}

// ---- tensors ----

const char* name_of_norm(const ModelConfig& c) {
  if (c.linear_attention == "basic") return "norm.weight";
  if (c.linear_attention != "diagonal_gate" && c.linear_attention != "retnet") return "o_norm.weight";
  return c.linear_output_gate ? "g_norm_swish_gate.weight" : "g_norm.weight";
}

std::string name_in_linear(const ModelConfig& c, const std::string& name) {
  static const std::map<std::string, std::string> names = {{"gate_in_proj.weight", "gk_proj.0.weight"},
                                                           {"gate_out_proj.weight", "gk_proj.1.weight"},
                                                           {"gate_out_proj.bias", "gk_proj.1.bias"},
                                                           {"gate_proj.weight", "a_proj.weight"},
                                                           {"gate_rate", "A_log"},
                                                           {"step_bias", "dt_bias"},
                                                           {"beta_proj.weight", "b_proj.weight"},
                                                           {"output_gate_proj.weight", "g_proj.weight"}};
  static const std::map<std::string, std::string> of_kda = {{"gate_in_proj.weight", "f_proj.0.weight"},
                                                            {"gate_out_proj.weight", "f_proj.1.weight"},
                                                            {"gate_out_proj.bias", "dt_bias"},
                                                            {"gate_rate", "A_log"},
                                                            {"beta_proj.weight", "b_proj.weight"},
                                                            {"output_gate_in_proj.weight", "g_proj.0.weight"},
                                                            {"output_gate_proj.weight", "g_proj.1.weight"},
                                                            {"output_gate_proj.bias", "g_proj.1.bias"}};
  if (name == "o_norm.weight") return name_of_norm(c);
  const auto& map = c.linear_attention == "kda" ? of_kda : names;
  const auto found = map.find(name);
  return found == map.end() ? name : found->second;
}

std::vector<StoredPiece> stored(const ModelConfig& c, const Parameter& p) {
  auto pieces = stored_whole(p);
  auto& name = pieces[0].name;
  if (name == "model.embed_tokens.weight") name = "model.embeddings.weight";
  const std::string linear = ".linear_attn.";
  if (const auto at = name.find(linear); at != std::string::npos)
    name = name.substr(0, at) + ".attn." + name_in_linear(c, name.substr(at + linear.size()));
  for (const auto& [ours, of_fla] : {std::pair<std::string, const char*>{".self_attn.", ".attn."},
                                     {".input_layernorm.", ".attn_norm."},
                                     {".post_attention_layernorm.", ".mlp_norm."}})
    if (const auto at = name.find(ours); at != std::string::npos) name.replace(at, ours.size(), of_fla);
  return pieces;
}

void small(ModelConfig& c) { c.linear_key_dim = 6, c.linear_value_dim = 5, c.tie_embeddings = false; }

}  // namespace

Family fla_family() {
  return {.name = "fla",
          .hugging_face_type = forms()[0].type,
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .stored = stored,
          .further_types = {"delta_net", "gated_deltanet", "linear_attn", "retnet", "kda"},
          .small = small};
}

}  // namespace ingot::models
