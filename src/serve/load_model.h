// A model for inference or export, from wherever it lies: a run directory, an ingot checkpoint, or a Hugging Face folder.
#pragma once

#include <filesystem>
#include <memory>

#include "data/tokenizer.h"
#include "models/model.h"

namespace ingot::serve {

struct LoadedModel {
  std::unique_ptr<models::Model> model;
  std::unique_ptr<data::Tokenizer> tokenizer;  // null when the place has none
};

/// With a layout, of the model what that gives this rank.
/// A run directory gives its newest checkpoint and its tokenizer. Throws an error that says what `path` should have been.
LoadedModel load_model(const std::filesystem::path& path, at::ScalarType dtype, at::Device device, const parallel::Layout& layout = {});

}  // namespace ingot::serve
