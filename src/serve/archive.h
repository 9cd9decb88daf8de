// A model as one file that is mapped, not read: its weights in the layout that they have in memory, its settings, and the files of its
// tokenizer (checkpoint/safetensors/archive.h). A model of it computes from the page cache: pages come when they are first used, processes
// share them, and what a process writes (--weights int8 rounds) stays its own. While it is served the file must not be truncated or written
// to; to replace it, rename another one over it.
#pragma once

#include <filesystem>

#include "serve/load_model.h"

namespace ingot::serve {

/// Writes the model, adapters merged and predictors of further tokens left out, and what its tokenizer, if any, was loaded from. `dtype`,
/// fp32 or bf16, is that of the matrices; what stays fp32 in a bf16 model does so here. The file appears whole or not at all. Throws
/// FileError, CheckpointError or ModelError.
void export_archive(const models::Model& model, const data::Tokenizer* tokenizer, const std::filesystem::path& path, at::ScalarType dtype);

/// Everything in the header is checked before the model is made; digests are not compared. Weights of another dtype or for another device
/// than the file's are copied. Throws ModelError, CheckpointError or FileError, all of which name the file.
LoadedModel load_archive(const std::filesystem::path& path, std::optional<at::ScalarType> dtype, at::Device device,
                         const parallel::Layout& layout);

}  // namespace ingot::serve
