// Gemma 2: capped scores of attention, capped logits, and sliding layers by turns with full ones; the rest is every Gemma's (gemma_like.h).
#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/gemma_like.h"

namespace ingot::models {
namespace {

using nlohmann::json;

std::vector<LayerParts> parts(const ModelConfig& c) { return {gemma_like_parts(c, QkNorm::none)}; }

ModelConfig from_hugging_face(const json& config) {
  const HuggingFaceFields fields(config);
  auto c = gemma_like_from_hugging_face(fields, "gemma2");
  // transformers' defaults; null is no cap.
  if (!config.contains("final_logit_softcapping")) c.logit_cap = 30;
  if (!config.contains("attn_logit_softcapping")) c.score_cap = 50;
  if (!fields.has("layer_types")) c.layer_types = {"sliding", "full"}, c.window = fields.integer("sliding_window", 4096);
  fields.read_rope(c, fields.rope());
  c.rope_base_sliding = c.rope_base;
  return c;
}

json to_hugging_face(const ModelConfig& c) {
  slides_with_one_rope_base(c);
  auto document = gemma_like_to_hugging_face(c, "gemma2", "Gemma2ForCausalLM");
  document["rope_parameters"] = hugging_face_rope(c, c.rope_base);
  return document;
}

void small(ModelConfig& c) { c.layer_types = {"sliding", "full"}, c.window = 5, c.score_cap = 2, c.logit_cap = 3; }

}  // namespace

Family gemma2_family() {
  return {.name = "gemma2",
          .hugging_face_type = "gemma2",
          .parts = parts,
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .embedding_scale = gemma_embedding_scale,
          .small = small};
}

}  // namespace ingot::models
