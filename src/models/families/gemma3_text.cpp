// Gemma 3, text: norms of every query and key head, and five sliding layers with a RoPE base of their own to each full one; the rest is
// every Gemma's (gemma_like.h).
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/family.h"
#include "models/gemma_like.h"

namespace ingot::models {
namespace {

using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig& c) { return {gemma_like_parts(c, QkNorm::head)}; }

ModelConfig from_hugging_face(const json& config) {
  const HuggingFaceFields fields(config);
  auto c = gemma_like_from_hugging_face(fields, "gemma3_text");
  if (c.score_cap > 0)
    throw base::ModelError("{}: attn_logit_softcapping is not supported for this model type: transformers does not cap its scores",
                           fields.origin());
  if (!fields.has("layer_types")) {  // files older than transformers 4.53
    const int64_t pattern = fields.integer("sliding_window_pattern", 6);
    if (pattern < 1) throw base::ModelError("{}: sliding_window_pattern = {} is not positive", fields.origin(), pattern);
    c.layer_types.assign(static_cast<size_t>(pattern - 1), "sliding");
    c.layer_types.emplace_back("full");
    c.window = fields.integer("sliding_window", 4096);
  }
  fields.read_rope(c, fields.rope("full_attention"));
  const auto rope = config.find("rope_parameters");
  const bool has_kinds = rope != config.end() && rope->is_object() && rope->contains("sliding_attention");
  if (has_kinds) {
    const HuggingFaceFields sliding(rope->at("sliding_attention"));
    c.rope_base_sliding = sliding.number("rope_theta", 10000);
    const auto type = sliding.text("rope_type", "default");
    if (type != "default" && type != c.rope_scaling)
      throw base::ModelError("{}: rope_type '{}' of sliding layers beside '{}' of full ones is not supported", fields.origin(), type,
                             c.rope_scaling);
    c.rope_scaling_sliding = type != "default";
  } else {
    if (!fields.has("rope_theta")) c.rope_base = 1000000;
    c.rope_base_sliding = fields.number("rope_local_base_freq", 10000);
    c.rope_scaling_sliding = false;
  }
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  if (c.score_cap > 0) throw base::ConfigError("model.score_cap = {}: gemma3_text has no such thing in Hugging Face's form", c.score_cap);
  auto common = c;
  common.rope_scaling_sliding = true;  // said below
  auto document = gemma_like_to_hugging_face(common, "gemma3_text", "Gemma3ForCausalLM");
  auto unscaled = c;
  if (!c.rope_scaling_sliding) unscaled.rope_scaling = "none";
  document["rope_parameters"] = {{"full_attention", hugging_face_rope(c, c.rope_base)},
                                 {"sliding_attention", hugging_face_rope(unscaled, c.rope_base_sliding)}};
  return document;
}

void small(ModelConfig& c) { c.layer_types = {"sliding", "full"}, c.window = 5; }

}  // namespace

Family gemma3_text_family() {
  return {.name = "gemma3_text",
          .hugging_face_type = "gemma3_text",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .embedding_scale = gemma_embedding_scale,
          .small = small};
}

}  // namespace ingot::models
