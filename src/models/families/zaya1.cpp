// ZAYA1: compressed convolutional attention and a mixture of experts in every block, joined to the residual stream by learned scales, with
// a router whose state runs along the depth.
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "models/family.h"
#include "models/hugging_face_config.h"
#include "models/zaya_folder.h"

namespace ingot::models {
namespace {

std::vector<LayerParts> parts(const ModelConfig&) {
  return {{.mixer = Mixer::cca, .feed_forward = FeedForwardKind::moe, .residual = ResidualStyle::scaled, .router = RouterKind::zaya}};
}

ModelConfig from_hugging_face(const nlohmann::json& json) {
  if (is_staged_zaya(json)) {
    ModelConfig c = from_hugging_face(unstaged_zaya(json));
    c.skip_class = HuggingFaceFields(json).boolean("zaya_use_mod", true);
    c.skip_output = "identity";  // what the programs of that form yield for a skipped token
    return c;
  }
  const HuggingFaceFields fields(json);
  ModelConfig c = fields.common();
  c.family = "zaya1";
  c.experts = fields.integer("num_experts");
  c.top_k = fields.integer("num_experts_per_tok", 1);
  c.expert_ffn = fields.integer("moe_intermediate_size");
  c.router_hidden = fields.integer("router_hidden_size");
  for (const char* width : {"cca_time0", "cca_time1"}) {
    if (fields.integer(width, 2) != 2)
      throw base::ModelError("{}: {} = {}, but only convolutions of width 2 exist", fields.origin(), width, fields.integer(width));
  }
  fields.refuse_unless("hidden_act", "silu");
  fields.refuse_if_true("attention_bias");
  fields.refuse_if_true("lm_head_bias");
  fields.read_layer_types(c, {{"hybrid", "full"}, {"hybrid_sliding", "sliding"}});
  fields.read_rope(c, fields.rope("hybrid"));
  c.rope_base_sliding = HuggingFaceFields(fields.rope("hybrid_sliding")).number("rope_theta", 10000);
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  if (!c.skip_class) throw base::ModelError("a zaya1 without the skip class (model.skip_class = false) has no Hugging Face form");
  if (c.skip_output != "zero")
    base::log_warning("model.skip_output = {}: transformers and vLLM yield 0 for a token that skips the mixture, SGLang p * x",
                      c.skip_output);
  auto json = common_hugging_face_config(c);
  json["model_type"] = "zaya";
  json["architectures"] = {"ZayaForCausalLM"};
  json["num_experts"] = c.experts;
  json["num_experts_per_tok"] = c.top_k;
  json["moe_intermediate_size"] = c.expert_ffn;
  json["router_hidden_size"] = c.router_hidden;
  json["cca_time0"] = json["cca_time1"] = 2;
  json["hidden_act"] = "silu";
  json["attention_bias"] = json["lm_head_bias"] = false;
  json["sliding_window"] = c.window > 0 ? nlohmann::json(c.window) : nlohmann::json();
  json["layer_types"] = hugging_face_layer_types(c, "hybrid", "hybrid_sliding");
  json["rope_parameters"] = {{"hybrid", hugging_face_rope(c, c.rope_base)}, {"hybrid_sliding", hugging_face_rope(c, c.rope_base_sliding)}};
  for (auto& rope : json["rope_parameters"])
    rope["partial_rotary_factor"] = c.rope_fraction;  // vLLM and SGLang take 0.5 where it is missing
  return json;
}

void small(ModelConfig& c) { c.top_k = 1, c.rope_fraction = 0.5; }

}  // namespace

Family zaya1_family() {
  return {.name = "zaya1",
          .hugging_face_type = "zaya",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .small = small};
}

}  // namespace ingot::models
