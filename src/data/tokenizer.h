// Text to token ids and back. Every tokenizer is immutable once loaded: any number of threads may use one at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace ingot::data {

namespace fs = base::fs;

/// Ids of the tokens that are not text; -1 where a tokenizer has none.
struct SpecialTokens {
  int32_t bos = -1, eos = -1, pad = -1, unk = -1;
};

class Tokenizer {
 public:
  Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;
  virtual ~Tokenizer() = default;

  /// The ids of a text, nothing added to it. Bytes that are not UTF-8 count as U+FFFD.
  virtual std::vector<int32_t> encode(std::string_view text) const = 0;
  /// The same with what the tokenizer's own template adds around a text: usually bos, eos or both.
  virtual std::vector<int32_t> encode_with_special(std::string_view text) const = 0;

  /// The text of the ids; special tokens are left out unless `keep_special`. Byte pieces that do not form UTF-8 come out as
  /// U+FFFD. Throws DataError for an id outside the vocabulary.
  virtual std::string decode(std::span<const int32_t> ids, bool keep_special = false) const = 0;

  virtual int32_t vocab_size() const = 0;
  /// The spelling of a token in the vocabulary: "▁the", "Ġthe", "<0x0A>".
  virtual std::string piece(int32_t id) const = 0;
  /// The id of that spelling, or -1.
  virtual int32_t id_of(std::string_view piece) const = 0;

  const SpecialTokens& special() const { return special_; }
  /// The file that it was loaded from, for messages and for copying along with a model.
  const fs::path& path() const { return path_; }

 protected:
  SpecialTokens special_;
  fs::path path_;
};

/// Loads a SentencePiece `.model`, a Hugging Face `tokenizer.json`, a `.tiktoken` file (also one of its form with another name), or a
/// folder that holds one of them (the first of tokenizer.json, tokenizer.model, *.tiktoken; a tokenizer_config.json beside it names bos,
/// eos and pad). Throws DataError naming the file and what is wrong with it.
std::unique_ptr<Tokenizer> load_tokenizer(const fs::path& path);

/// Turns ids into text one at a time, as generation produces them: text comes out as soon as no later id can change it, so
/// that a character made of several byte tokens never appears half. The tokenizer must outlive it; one thread.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool keep_special = false) : tokenizer_(tokenizer), keep_special_(keep_special) {}
  /// The text that this id completes; often empty.
  std::string push(int32_t id);
  /// What is still held back: the remains of a sequence that never became UTF-8.
  std::string finish();

 private:
  std::string pending() const;

  const Tokenizer& tokenizer_;
  bool keep_special_;
  std::vector<int32_t> ids_;  // the context that the next id is decoded with
  size_t shown_ = 0;          // how many of them have been given out
};

}  // namespace ingot::data
