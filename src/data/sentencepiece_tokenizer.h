// A tokenizer that encodes and decodes with the SentencePiece library.
#pragma once

#include <memory>

#include "data/hugging_face/vocabulary.h"
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
  /// From the bytes of a model and the text of a tokenizer_config.json ("" for none); `origin` is for messages.
  SentencePieceTokenizer(std::string_view bytes, const fs::path& origin, const std::string& config = "");
  ~SentencePieceTokenizer() override;

  std::vector<int32_t> encode(std::string_view text) const override;
  /// With bos and eos as add_bos_token and add_eos_token of a tokenizer_config.json beside the model say; without it the text alone.
  std::vector<int32_t> encode_with_special(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids, bool keep_special = false) const override;
  int32_t vocab_size() const override { return static_cast<int32_t>(model_.pieces.size()); }
  std::string piece(int32_t id) const override;
  int32_t id_of(std::string_view piece) const override;

  const SentencePieceModel& model() const { return model_; }

 private:
  void open();
  void read_configuration(const std::string& text, const fs::path& origin);
  std::vector<int32_t> encode_whole(std::string_view text) const;
  void encode_part(std::string_view text, std::vector<int32_t>& ids) const;

  SentencePieceModel model_;
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
  bool add_bos_ = false, add_eos_ = false;
  bool is_plain_ = false;                // nothing depends on what surrounds a text: parts of it may be encoded alone
  bool by_words_ = false;                // no normal piece crosses a word border: words may be encoded alone
  std::unique_ptr<PrefixTree> symbols_;  // user-defined pieces, which are taken out of the text before all else
  mutable WordCache words_;
};

}  // namespace ingot::data
