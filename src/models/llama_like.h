// What the families with Llama's settings have alike in their config.json.
#pragma once

#include "models/hugging_face_config.h"
#include "models/parts/layer_parts.h"

namespace ingot::models {

ModelConfig llama_like_from_hugging_face(const HuggingFaceFields& fields);
/// Throws ConfigError for a sliding window, which has no place there.
nlohmann::json llama_like_to_hugging_face(const ModelConfig& config);
/// The same without what is said of a dense MLP.
nlohmann::json llama_attention_to_hugging_face(const ModelConfig& config);
/// The same of the families that have a mixture of experts in every layer: what these name alike.
ModelConfig moe_from_hugging_face(const HuggingFaceFields& fields, const char* family);
nlohmann::json moe_to_hugging_face(const ModelConfig& config, const char* type, const char* architecture);
/// Of each layer of model.layer_pattern: linear where it has L, softmax where N. Throws ConfigError for anything else.
std::vector<Mixer> mixers_of_pattern(const ModelConfig& config);
/// ModelError where decoder_sparse_step or mlp_only_layers (Qwen's) name layers without experts.
void refuse_dense_layers(const HuggingFaceFields& fields, const nlohmann::json& json);

}  // namespace ingot::models
