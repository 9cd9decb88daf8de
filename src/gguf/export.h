// Models as GGUF files, for llama.cpp and what is built on it.
#pragma once

#include <filesystem>
#include <string>

#include "data/tokenizer.h"
#include "gguf/file.h"
#include "models/model.h"

namespace ingot::gguf {

/// fp32, bf16, fp16 or q8_0.
Type type_named(const std::string& dtype);

/// Writes the model, adapters merged, and its tokenizer, if any: matrices as `matrices`, vectors in fp32. The file appears whole or not at
/// all. Logs where llama.cpp will do otherwise than we do. Throws ModelError, DataError, NumericError or FileError.
void export_model(const models::Model& model, const data::Tokenizer* tokenizer, const std::filesystem::path& path, Type matrices);

}  // namespace ingot::gguf
