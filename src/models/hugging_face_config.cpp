#include "models/hugging_face_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"

namespace ingot::models {

using base::ModelError;
using nlohmann::json;

json read_json_file(const std::filesystem::path& path) {
  constexpr int64_t kLimitBytes = int64_t{16} << 20;
  auto parsed = json::parse(base::read_file(path, kLimitBytes), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) throw ModelError("{} is not valid JSON", path.string());
  if (!parsed.is_object()) throw ModelError("{} is not a JSON object", path.string());
  return parsed;
}

bool HuggingFaceFields::has(const std::string& name) const {
  return json_.is_object() && json_.contains(name) && !json_.at(name).is_null();
}

int64_t HuggingFaceFields::integer(const std::string& name) const {
  if (!has(name)) throw ModelError("{}: the field {} is missing", origin(), name);
  if (!json_.at(name).is_number_integer()) throw ModelError("{}: {} is {}, not an integer", origin(), name, json_.at(name).dump());
  return json_.at(name).get<int64_t>();
}
int64_t HuggingFaceFields::integer(const std::string& name, int64_t otherwise) const { return has(name) ? integer(name) : otherwise; }

double HuggingFaceFields::number(const std::string& name) const {
  if (!has(name)) throw ModelError("{}: the field {} is missing", origin(), name);
  if (!json_.at(name).is_number()) throw ModelError("{}: {} is {}, not a number", origin(), name, json_.at(name).dump());
  return json_.at(name).get<double>();
}
double HuggingFaceFields::number(const std::string& name, double otherwise) const { return has(name) ? number(name) : otherwise; }

bool HuggingFaceFields::boolean(const std::string& name, bool otherwise) const {
  if (!has(name)) return otherwise;
  if (!json_.at(name).is_boolean()) throw ModelError("{}: {} is {}, not true or false", origin(), name, json_.at(name).dump());
  return json_.at(name).get<bool>();
}

std::string HuggingFaceFields::text(const std::string& name, const std::string& otherwise) const {
  if (!has(name)) return otherwise;
  if (!json_.at(name).is_string()) throw ModelError("{}: {} is {}, not a text", origin(), name, json_.at(name).dump());
  return json_.at(name).get<std::string>();
}

void HuggingFaceFields::refuse_unless(const std::string& name, const std::string& expected) const {
  const auto value = text(name, expected);
  if (value != expected) throw ModelError("{}: {} = '{}' is not supported for this model type; '{}' is", origin(), name, value, expected);
}

void HuggingFaceFields::refuse_if_true(const std::string& name) const {
  if (boolean(name, false)) throw ModelError("{}: {} = true is not supported for this model type", origin(), name);
}

ModelConfig HuggingFaceFields::common() const {
  if (!json_.is_object()) throw ModelError("{} does not hold a JSON object", origin());
  ModelConfig c;
  c.layers = integer("num_hidden_layers");
  constexpr int64_t kMostLayers = 100000;  // of what has an entry for each
  if (c.layers < 1 || c.layers > kMostLayers) throw ModelError("{}: num_hidden_layers is {}", origin(), c.layers);
  c.hidden = integer("hidden_size");
  c.vocab_size = integer("vocab_size");
  c.heads = integer("num_attention_heads");
  if (has("quantization_config")) throw ModelError("{}: the weights are quantized; convert the folder to bf16 first", origin());
  c.kv_heads = integer("num_key_value_heads", c.heads);
  c.head_dim = integer("head_dim", 0);
  c.norm_eps = number("rms_norm_eps", 1e-6);
  c.tie_embeddings = boolean("tie_word_embeddings", false);
  c.max_positions = integer("max_position_embeddings", 2048);
  c.init_std = number("initializer_range", 0.02);
  const auto id = [&](const char* name) {
    if (!has(name)) return int64_t{-1};
    const auto& value = json_.at(name);  // eos may be a list: its first is the one that ends a document
    if (value.is_array() && !value.empty() && value[0].is_number_integer()) return value[0].get<int64_t>();
    return integer(name);
  };
  c.pad_id = id("pad_token_id");
  c.bos_id = id("bos_token_id");
  c.eos_id = id("eos_token_id");
  return c;
}

void HuggingFaceFields::read_layer_types(ModelConfig& config, const std::map<std::string, std::string>& names) const {
  config.window = integer("sliding_window", 0);
  if (!has("layer_types")) return;
  const auto& types = json_.at("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != config.layers)
    throw ModelError("{}: layer_types has {} entries for {} layers", origin(), types.size(), config.layers);
  bool any_sliding = false;
  for (const auto& type : types) {
    const auto found = type.is_string() ? names.find(type.get<std::string>()) : names.end();
    if (found == names.end()) throw ModelError("{}: layer type {} is not known for this model type", origin(), type.dump());
    config.layer_types.push_back(found->second);
    any_sliding |= found->second == "sliding";
  }
  if (!any_sliding) config.layer_types.clear();
}

void HuggingFaceFields::read_window_of_all_layers(ModelConfig& config) const {
  // Files older than transformers 5 may have a window beyond the context, which hides nothing.
  if (!has("sliding_window") || integer("sliding_window") >= config.max_positions) return;
  config.layer_types = {"sliding"};
  config.window = integer("sliding_window");
  config.rope_base_sliding = config.rope_base;
}

double yarn_scale(double factor, double mscale) { return factor <= 1 ? 1 : 0.1 * mscale * std::log(factor) + 1; }

json HuggingFaceFields::rope(const std::string& kind) const {
  json rope = has("rope_parameters") ? json_.at("rope_parameters") : json();
  if (!kind.empty() && rope.is_object() && rope.contains(kind)) rope = rope.at(kind);
  if (!rope.is_object()) rope = json::object();
  // Files older than transformers 5 spread these fields over the top level.
  if (has("rope_scaling") && json_.at("rope_scaling").is_object()) rope.update(json_.at("rope_scaling"));
  for (const char* name : {"rope_theta", "partial_rotary_factor"}) {
    if (!rope.contains(name) && has(name)) rope[name] = json_.at(name);
  }
  return rope;
}

void HuggingFaceFields::read_longrope(ModelConfig& config, const json& rope) const {
  const HuggingFaceFields fields(rope);
  const int64_t original = fields.has("original_max_position_embeddings") ? fields.integer("original_max_position_embeddings")
                                                                          : integer("original_max_position_embeddings");
  if (original < 2) throw ModelError("{}: original_max_position_embeddings = {} is too small", origin(), original);
  config.rope_original_positions = original;
  config.rope_factor = fields.number("factor", static_cast<double>(config.max_positions) / static_cast<double>(original));
  const double plain = config.rope_factor <= 1 ? 1 : std::sqrt(1 + std::log(config.rope_factor) / std::log(original));
  config.rope_attention_factor = fields.number("attention_factor", plain);
  const auto factors = [&](const char* name) {
    const auto found = rope.find(name);
    if (found == rope.end() || !found->is_array()) throw ModelError("{}: {} is not a list of numbers", origin(), name);
    std::vector<double> all;
    for (const auto& factor : *found) {
      if (!factor.is_number() || !(factor.get<double>() > 0))
        throw ModelError("{}: {} has {}, no positive number", origin(), name, factor.dump());
      all.push_back(factor.get<double>());
    }
    return all;
  };
  config.rope_short_factors = factors("short_factor");
  config.rope_long_factors = factors("long_factor");
}

void HuggingFaceFields::read_rope(ModelConfig& config, const json& rope) const {
  const HuggingFaceFields fields(rope);
  config.rope_base = fields.number("rope_theta", 10000);
  config.rope_fraction = fields.number("partial_rotary_factor", 1);
  if (!(config.rope_fraction >= 0 && config.rope_fraction <= 1))
    throw ModelError("{}: partial_rotary_factor is {}, not from 0 to 1", origin(), config.rope_fraction);
  const auto type = fields.text("rope_type", fields.text("type", "default"));
  if (type == "default") return;
  if (type != "linear" && type != "llama3" && type != "yarn" && type != "longrope")
    throw ModelError("{}: rope_type '{}' is not supported; default, linear, llama3, yarn and longrope are", origin(), type);
  config.rope_scaling = type;
  if (type == "longrope") return read_longrope(config, rope);
  config.rope_factor = fields.number("factor");
  if (type == "linear") return;
  config.rope_original_positions = fields.integer("original_max_position_embeddings");
  if (type == "yarn") {
    config.rope_beta_fast = fields.number("beta_fast", 32);
    config.rope_beta_slow = fields.number("beta_slow", 1);
    config.rope_truncate = fields.boolean("truncate", true);
    const double all = fields.number("mscale_all_dim", 0), own = fields.number("mscale", 0);
    const double plain = yarn_scale(config.rope_factor, 1);
    config.rope_attention_factor = fields.number(
        "attention_factor", own > 0 && all > 0 ? yarn_scale(config.rope_factor, own) / yarn_scale(config.rope_factor, all) : plain);
    return;
  }
  config.rope_low_frequency_factor = fields.number("low_freq_factor");
  config.rope_high_frequency_factor = fields.number("high_freq_factor");
}

bool slides_with_one_rope_base(const ModelConfig& c) {
  bool any_sliding = false;
  for (int64_t layer = 0; layer < c.layers; ++layer) any_sliding |= c.is_sliding(layer);
  if (any_sliding && c.rope_base_sliding != c.rope_base)
    throw base::ConfigError("model.rope_base_sliding = {}, model.rope_base = {}: {} has one base in Hugging Face's form",
                            c.rope_base_sliding, c.rope_base, c.family);
  return any_sliding;
}

json hugging_face_layer_types(const ModelConfig& c, const char* full, const char* sliding) {
  auto types = json::array();
  for (int64_t layer = 0; layer < c.layers; ++layer) types.push_back(c.is_sliding(layer) ? sliding : full);
  return types;
}

json take_window_of_all_layers(ModelConfig& c) {
  for (int64_t layer = 0; layer < c.layers; ++layer)
    if (!c.is_sliding(layer)) return nullptr;
  c.layer_types.clear();
  return c.window;
}

json hugging_face_rope(const ModelConfig& c, double base) {
  json rope = {{"rope_theta", base}, {"rope_type", c.rope_scaling == "none" ? "default" : c.rope_scaling}};
  if (c.rope_fraction != 1) rope["partial_rotary_factor"] = c.rope_fraction;
  if (c.rope_scaling != "none") rope["factor"] = c.rope_factor;
  if (c.rope_scaling == "llama3") {
    rope["low_freq_factor"] = c.rope_low_frequency_factor;
    rope["high_freq_factor"] = c.rope_high_frequency_factor;
  }
  if (c.rope_scaling == "yarn") {
    rope["beta_fast"] = c.rope_beta_fast;
    rope["beta_slow"] = c.rope_beta_slow;
    rope["truncate"] = c.rope_truncate;
    rope["attention_factor"] = c.rope_attention_factor;
  }
  if (c.rope_scaling == "longrope") {
    rope["short_factor"] = c.rope_short_factors, rope["long_factor"] = c.rope_long_factors;
    rope["attention_factor"] = c.rope_attention_factor;
  }
  if (c.rope_scaling == "llama3" || c.rope_scaling == "yarn" || c.rope_scaling == "longrope")
    rope["original_max_position_embeddings"] = c.rope_original_positions;
  return rope;
}

json common_hugging_face_config(const ModelConfig& c) {
  const auto refuse = [&](const char* setting, bool is_used) {
    if (is_used) throw base::ConfigError("model.{}: the {} family has no such thing in Hugging Face's form", setting, c.family);
  };
  refuse("softmax_scale", c.softmax_scale > 0);
  refuse("embedding_scale", c.embedding_scale > 0);
  refuse("residual_scale", c.residual_scale != 1);
  refuse("logit_scale", c.logit_scale != 1);
  refuse("logit_cap", c.logit_cap > 0);
  refuse("score_cap", c.score_cap > 0);
  refuse("mtp_layers", c.mtp_layers > 0);
  refuse("bidirectional", c.bidirectional);
  refuse("layer_types = nope", std::find(c.layer_types.begin(), c.layer_types.end(), "nope") != c.layer_types.end());
  refuse("rope_scaling_sliding = false", !c.rope_scaling_sliding && c.rope_scaling != "none");
  const auto id = [](int64_t value) { return value < 0 ? json() : json(value); };
  return {{"vocab_size", c.vocab_size},
          {"hidden_size", c.hidden},
          {"num_hidden_layers", c.layers},
          {"num_attention_heads", c.heads},
          {"num_key_value_heads", c.kv_heads},
          {"head_dim", c.resolved_head_dim()},
          {"rms_norm_eps", c.norm_eps},
          {"tie_word_embeddings", c.tie_embeddings},
          {"max_position_embeddings", c.max_positions},
          {"initializer_range", c.init_std},
          {"attention_dropout", 0.0},
          {"use_cache", true},
          {"pad_token_id", id(c.pad_id)},
          {"bos_token_id", id(c.bos_id)},
          {"eos_token_id", id(c.eos_id)}};
}

layers::RotarySettings rotary_settings(const ModelConfig& c, int64_t layer) {
  layers::RotarySettings s;
  s.base = c.rope_base_of(layer);
  if (c.layer_type(layer) == "nope") return s;
  s.rotated = static_cast<int64_t>(static_cast<double>(c.resolved_head_dim()) * c.rope_fraction);
  if (c.rope_scaling == "none" || (c.is_sliding(layer) && !c.rope_scaling_sliding)) return s;
  s.original_positions = c.rope_original_positions;
  if (c.rope_scaling == "longrope") {
    s.short_factors = c.rope_short_factors, s.long_factors = c.rope_long_factors, s.amplitude = c.rope_attention_factor;
    return s;
  }
  s.factor = c.rope_factor;
  s.linear = c.rope_scaling == "linear";
  if (c.rope_scaling == "yarn") {
    s.beta_fast = c.rope_beta_fast, s.beta_slow = c.rope_beta_slow, s.truncates = c.rope_truncate;
    s.amplitude = c.rope_attention_factor;
  }
  s.low_frequency_factor = c.rope_low_frequency_factor;
  s.high_frequency_factor = c.rope_high_frequency_factor;
  return s;
}

}  // namespace ingot::models
