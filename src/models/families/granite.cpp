// Granite 3: Llama's blocks whose embeddings, scores, branches and logits are each multiplied by a number of the configuration.
#include <cmath>
#include <nlohmann/json.hpp>

#include "models/family.h"
#include "models/llama_like.h"

namespace ingot::models {
namespace {

ModelConfig from_hugging_face(const nlohmann::json& document) {
  const HuggingFaceFields fields(document);
  auto c = llama_like_from_hugging_face(fields);
  c.family = "granite";
  c.embedding_scale = fields.number("embedding_multiplier", 1);
  c.softmax_scale = fields.number("attention_multiplier", 1);
  c.residual_scale = fields.number("residual_multiplier", 1);
  c.logit_scale = 1 / fields.number("logits_scaling", 1);
  return c;
}

nlohmann::json to_hugging_face(const ModelConfig& c) {
  auto common = c;  // without what is this family's own
  common.embedding_scale = common.softmax_scale = 0;
  common.residual_scale = common.logit_scale = 1;
  auto document = llama_like_to_hugging_face(common);
  document["model_type"] = "granite";
  document["architectures"] = {"GraniteForCausalLM"};
  document["embedding_multiplier"] = c.embedding_scale > 0 ? c.embedding_scale : 1.0;
  document["attention_multiplier"] = c.softmax_scale > 0 ? c.softmax_scale : 1 / std::sqrt(static_cast<double>(c.resolved_head_dim()));
  document["residual_multiplier"] = c.residual_scale;
  document["logits_scaling"] = 1 / c.logit_scale;
  return document;
}

void small(ModelConfig& c) { c.embedding_scale = 3, c.softmax_scale = 0.4, c.residual_scale = 0.5, c.logit_scale = 0.25; }

}  // namespace

Family granite_family() {
  return {.name = "granite",
          .hugging_face_type = "granite",
          .parts = [](const ModelConfig&) { return std::vector<LayerParts>(1); },
          .from_hugging_face = from_hugging_face,
          .to_hugging_face = to_hugging_face,
          .small = small};
}

}  // namespace ingot::models
