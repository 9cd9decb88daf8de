// A tokenizer that encodes and decodes with the SentencePiece library.
#pragma once

#include <functional>
#include <memory>
#include <unordered_map>

#include "data/sentencepiece_model.h"
#include "data/tokenizer.h"
#include "data/word_cache.h"

namespace sentencepiece {
class SentencePieceProcessor;
}

namespace ingot::data {

class SentencePieceTokenizer : public Tokenizer {
 public:
  /// Throws DataError when the file is not a model that can be trusted.
  explicit SentencePieceTokenizer(const fs::path& path);
  /// From the bytes of a model; `origin` is for messages.
  SentencePieceTokenizer(std::string_view bytes, const fs::path& origin);
  ~SentencePieceTokenizer() override;

  std::vector<int32_t> encode(std::string_view text) const override;
  /// bos + text: what the models that ship a `.model` alone expect. Without a bos, the text alone.
  std::vector<int32_t> encode_with_special(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids, bool keep_special = false) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(model_.pieces.size()); }
  std::string piece(int32_t id) const override;
  int32_t id_of(std::string_view piece) const override;

  const SentencePieceModel& model() const { return model_; }

 private:
  void open();
  std::vector<int32_t> encode_whole(std::string_view text) const;

  SentencePieceModel model_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  bool by_words_ = false;  // no piece crosses a word border, so words may be encoded alone
  mutable WordCache words_;
};

}  // namespace ingot::data
