// A model family: a map of Hugging Face's names and settings onto parts (parts/layer_parts.h). Adding one: docs/adding-a-model.md.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/config.h"
#include "models/parts/layer_parts.h"
#include "models/stored_tensors.h"

namespace ingot::models {

struct Family {
  std::string name;               // in our configs
  std::string hugging_face_type;  // "model_type" of its config.json
  /// Of which parts its layers are made, repeated over the depth. Throws ConfigError for settings that the family does not have.
  std::vector<LayerParts> (*parts)(const ModelConfig&);
  ModelConfig (*from_hugging_face)(const nlohmann::json&);
  nlohmann::json (*to_hugging_face)(const ModelConfig&);
  /// What embeddings are multiplied by where model.embedding_scale is 0; null = 1.
  double (*embedding_scale)(const ModelConfig&) = nullptr;
  /// How a parameter lies in a folder; null = whole, under its own name.
  std::vector<StoredPiece> (*stored)(const ModelConfig&, const layers::Parameter&) = nullptr;
  /// Tensors of a folder that are no part of the model, and are left aside in silence; null = none.
  bool (*is_ignored)(const ModelConfig&, const std::string& tensor) = nullptr;
  /// Further model types that it reads and writes: of which one a folder is, config.json says, and of which one a model, its settings.
  std::vector<std::string> further_types{};
  /// Sets what its parts need beside the sizes that are there; null = nothing.
  void (*small)(ModelConfig&) = nullptr;
};

/// Every families/NAME.cpp's NAME_family(), by their names.
const std::vector<Family>& families();
std::vector<std::string> family_names();
/// ConfigError for a name that no family has.
const Family& family_named(const std::string& name);

/// Four layers, small enough for finite differences.
ModelConfig small_sizes();
/// A model that has all parts of its family: what the tests of all families train, and `ingot train --example FAMILY` prints.
ModelConfig small_model(const std::string& family, ModelConfig sizes = small_sizes());

}  // namespace ingot::models
