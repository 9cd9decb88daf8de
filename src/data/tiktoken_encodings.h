// What a file of ranks does not say: the pattern that cuts text into words, and the special tokens. Published encodings have it in their
// programs, from which it is stated here as data.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ingot::data {

struct TiktokenEncoding {
  std::string pattern;  // in the syntax of Rust's fancy-regex
  std::map<std::string, int64_t> special_tokens;
};

/// Of a file's name and the number of its ranks, behind which some families put their special tokens. Known names: cl100k_base, o200k_base,
/// p50k_base, r50k_base and gpt2 (`.tiktoken`), names with "qwen", and tokenizer.model with the 128,000 ranks of Llama 3.
std::optional<TiktokenEncoding> known_encoding(std::string_view file_name, int64_t ranks);

/// The names, for messages.
std::string known_encodings();

}  // namespace ingot::data
