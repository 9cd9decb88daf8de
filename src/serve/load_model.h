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

/// The tokenizer at `path`, or with an empty path the model's own, which goes with the model. Throws UsageError when there is none, and
/// ModelError when it has tokens that the model does not know.
const data::Tokenizer& tokenizer_for(LoadedModel& loaded, const std::filesystem::path& path);

}  // namespace ingot::serve
