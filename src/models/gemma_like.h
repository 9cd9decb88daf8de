// What the Gemma families have alike: norms of 1 + weight around both branches, a GeGLU, embeddings times sqrt(hidden), and their settings.
#pragma once

#include "models/hugging_face_config.h"
#include "models/parts/layer_parts.h"

namespace ingot::models {

/// ConfigError for biases of the MLP.
LayerParts gemma_like_parts(const ModelConfig& config, QkNorm qk_norm);
double gemma_embedding_scale(const ModelConfig& config);
/// Without RoPE and the kinds of layers.
ModelConfig gemma_like_from_hugging_face(const HuggingFaceFields& fields, const char* family);
nlohmann::json gemma_like_to_hugging_face(const ModelConfig& config, const char* type, const char* architecture);

}  // namespace ingot::models
