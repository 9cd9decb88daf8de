// A tokenizer as llama.cpp reads it: byte-level BPE as its "gpt2" (pieces, merges, and the name of what cuts text into words), pieces with
// scores and a piece for each byte as its "llama".
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.h"
#include "gguf/file.h"
#include "models/config.h"

namespace ingot::gguf {

/// Keys tokenizer.*; without a tokenizer those of a model that takes ids alone. What llama.cpp would cut otherwise goes to `differences`,
/// in words. Throws DataError for a tokenizer that llama.cpp has nothing like, and ModelError for one with more tokens than the model
/// knows.
std::vector<Field> vocabulary_fields(const data::Tokenizer* tokenizer, const models::ModelConfig& config,
                                     std::vector<std::string>& differences);

/// llama.cpp's name for the pre-tokenizer of a tokenizer.json with a byte-level BPE, by its patterns; nothing where it is none of those
/// known here. `text`: the whole file.
std::optional<std::string> pre_tokenizer_name(const std::string& text);

}  // namespace ingot::gguf
