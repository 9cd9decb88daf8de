// A model for inference or export, from wherever it lies: a run directory, an ingot checkpoint, a Hugging Face folder, or an archive.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/chat/chat_template.h"
#include "data/tokenizer.h"
#include "data/tokenizer_files.h"
#include "models/model.h"

namespace ingot::serve {

struct LoadedModel {
  std::unique_ptr<models::Model> model;
  std::unique_ptr<data::Tokenizer> tokenizer;  // null when the place has none
  data::TokenizerFiles files{};                // of an archive, whose tokenizer has no folder
};

/// A value of --dtype; nothing for "", which leaves the choice to load_model.
std::optional<at::ScalarType> dtype_named(const std::string& name);

/// With a layout, of the model what that gives this rank. Without a dtype an archive has its own, all else fp32.
/// A run directory gives its newest checkpoint and its tokenizer. Throws an error that says what `path` should have been.
LoadedModel load_model(const std::filesystem::path& path, std::optional<at::ScalarType> dtype, at::Device device,
                       const parallel::Layout& layout = {});

/// What several ranks share out: "tensor" (each matrix), "tensor_sequence" (each matrix, and the tokens in the cache) or "experts".
parallel::Layout layout_over(comm::Group& ranks, const std::string& axis);
/// The same over `ranks` (null: alone) by an axis; by the first of these by which the model can be shared out where it is "".
LoadedModel load_model_over(const std::filesystem::path& path, std::optional<at::ScalarType> dtype, at::Device device, comm::Group* ranks,
                            const std::string& axis);

/// The tokenizer at `path`, or with an empty path the model's own, which goes with the model. Throws UsageError when there is none, and
/// ModelError when it has tokens that the model does not know.
const data::Tokenizer& tokenizer_for(LoadedModel& loaded, const std::filesystem::path& path);

/// What lies beside the model's tokenizer: its chat template, or the one at `path` with its special tokens; and what generation ends at.
/// Throws DataError for what is no template.
std::optional<data::chat::ChatTemplate> chat_template_of(const LoadedModel& loaded, const std::filesystem::path& path);
std::vector<int64_t> ends_of(const LoadedModel& loaded);

}  // namespace ingot::serve
