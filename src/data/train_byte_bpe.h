// Trains byte-level BPE: words that a pattern cuts, their bytes as first tokens, and then again and again the most frequent pair of
// neighbours as a new token, of equals the one of the lowest ids. The merges are those of Hugging Face's BpeTrainer for the same words, in
// its order. Deterministic, one thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::data {

/// GPT-4's way to cut words, as Llama 3 has it: letters with what stands before them, numbers of up to three digits, punctuation, white
/// space.
inline constexpr const char* kByteBpePattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct ByteBpeOptions {
  int64_t vocab_size = 8192;
  std::string pattern = kByteBpePattern;
  std::vector<std::string> special;  // the first ids
  std::vector<std::string> symbols;  // the next ones: always one token
};

/// The text of a tokenizer.json. Of pairs that come once none becomes a token: throws DataError with the number of tokens that there are
/// where they are fewer than wished.
std::string train_byte_bpe(const std::vector<std::string>& texts, const ByteBpeOptions& options);

}  // namespace ingot::data
