// gpt-oss (OpenAI, 2025): attention with sinks, every other layer through a window, and mixtures of experts with biases and a clamped gate.
// Folders have the experts' matrices transposed, and rows of gate and up in turn.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/hugging_face_config.h"
#include "models/stored_tensors.h"

namespace ingot::models {
namespace {

using layers::Parameter;
using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig&) {
  return {{.feed_forward = FeedForwardKind::moe, .has_sinks = true, .gate = kernels::Gate::clamped, .has_moe_biases = true}};
}

ModelConfig from_hugging_face(const json& document) {
  const HuggingFaceFields fields(document);
  ModelConfig c = fields.common();
  c.family = "gpt_oss";
  // transformers' defaults, from here on.
  if (c.head_dim == 0) c.head_dim = 64;
  c.norm_eps = fields.number("rms_norm_eps", 1e-5);
  c.attention_bias = fields.boolean("attention_bias", true);
  c.experts = fields.has("num_local_experts") ? fields.integer("num_local_experts") : fields.integer("num_experts", 128);
  c.top_k = fields.integer("num_experts_per_tok", 4);
  c.norm_topk_prob = true;  // a softmax over the chosen ones is the same
  c.expert_ffn = fields.integer("intermediate_size");
  fields.refuse_unless("hidden_act", "silu");
  for (const auto& [name, value] : {std::pair{"swiglu_alpha", kernels::kClampedSlope}, {"swiglu_limit", kernels::kClampedLimit}})
    if (const double other = fields.number(name, value); static_cast<float>(other) != value)
      throw base::ModelError("{}: {} = {} is not supported, {} is", fields.origin(), name, other, value);
  fields.read_layer_types(c, {{"full_attention", "full"}, {"sliding_attention", "sliding"}});
  if (!fields.has("layer_types")) {
    c.layer_types = {"sliding", "full"};
    c.window = fields.integer("sliding_window", 128);
  }
  auto rope = fields.rope();
  if (rope.empty()) rope = {{"rope_type", "yarn"}, {"factor", 32.0}, {"truncate", false}, {"original_max_position_embeddings", 4096}};
  if (!rope.contains("rope_theta")) rope["rope_theta"] = 150000.0;
  fields.read_rope(c, rope);
  c.rope_base_sliding = c.rope_base;
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  slides_with_one_rope_base(c);
  if (!c.norm_topk_prob) throw base::ConfigError("model.norm_topk_prob = false: gpt_oss has no such thing in Hugging Face's form");
  auto document = common_hugging_face_config(c);
  document["model_type"] = "gpt_oss";
  document["architectures"] = {"GptOssForCausalLM"};
  document["attention_bias"] = c.attention_bias;
  document["num_local_experts"] = c.experts;
  document["num_experts_per_tok"] = c.top_k;
  document["intermediate_size"] = c.expert_ffn;
  document["hidden_act"] = "silu";
  document["swiglu_alpha"] = 1.702;
  document["swiglu_limit"] = 7.0;
  document["sliding_window"] = c.window > 0 ? json(c.window) : json(128);
  document["layer_types"] = hugging_face_layer_types(c, "full_attention", "sliding_attention");
  document["rope_parameters"] = hugging_face_rope(c, c.rope_base);
  return document;
}

std::vector<StoredPiece> stored(const ModelConfig&, const Parameter& p) {
  const auto is = [&](const char* name) { return p.name.ends_with(name); };
  const auto halves = [](const at::Tensor& x) { return x.unflatten(1, {2, x.size(1) / 2}); };                 // gate, then up
  const auto turns = [](const at::Tensor& x) { return x.unflatten(1, {x.size(1) / 2, 2}).transpose(1, 2); };  // in turn
  if (is(".experts.gate_up_proj"))
    return {{p.name, {p.shape[0], p.shape[2], p.shape[1]}, halves, [turns](const at::Tensor& x) { return turns(x.transpose(1, 2)); }}};
  if (is(".experts.gate_up_proj_bias")) return {{p.name, p.shape, halves, turns}};
  if (is(".experts.down_proj"))
    return {{p.name,
             {p.shape[0], p.shape[2], p.shape[1]},
             [](const at::Tensor& x) { return x; },
             [](const at::Tensor& x) { return x.transpose(1, 2); }}};
  auto pieces = stored_whole(p);
  if (const auto at = p.name.find(".mlp.gate."); at != std::string::npos) pieces[0].name.replace(at, 10, ".mlp.router.");
  pieces[0].is_optional = p.kind == Parameter::Kind::buffer;
  return pieces;
}

void small(ModelConfig& c) { c.layer_types = {"sliding", "full"}, c.window = 5; }

}  // namespace

Family gpt_oss_family() {
  return {.name = "gpt_oss",
          .hugging_face_type = "gpt_oss",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .stored = stored,
          .small = small};
}

}  // namespace ingot::models
