// A tokenizer read from Hugging Face's tokenizer.json, without Hugging Face's code: added tokens are taken out of the text,
// the rest is normalised, cut into pre-tokens and encoded by the model.
#pragma once

#include <map>
#include <memory>
#include <unordered_map>

#include "data/hugging_face/added_tokens.h"
#include "data/hugging_face/decoder.h"
#include "data/hugging_face/model.h"
#include "data/hugging_face/normalizer.h"
#include "data/hugging_face/pre_tokenizer.h"
#include "data/tokenizer.h"
#include "data/word_cache.h"

namespace ingot::data {

class HuggingFaceTokenizer : public Tokenizer {
 public:
  /// Reads `path`, a tokenizer.json, and tokenizer_config.json beside it where there is one. Throws DataError when the file is
  /// damaged or uses a component that is not supported, named.
  explicit HuggingFaceTokenizer(const fs::path& path);
  /// From the text of a tokenizer.json and of a tokenizer_config.json ("" for none); `origin` is for messages.
  HuggingFaceTokenizer(const std::string& text, const std::string& config, const fs::path& origin);

  std::vector<int32_t> encode(std::string_view text) const override;
  std::vector<int32_t> encode_with_special(std::string_view text) const override;
  std::string decode(std::span<const int32_t> ids, bool keep_special = false) const override;
  int32_t vocab_size() const override { return vocab_size_; }
  std::string piece(int32_t id) const override;
  int32_t id_of(std::string_view piece) const override;

 private:
  void load(const std::string& text, const std::string& config);
  void read_template(const nlohmann::json& processor, int depth);
  void encode_segment(Segment segment, std::vector<int32_t>& ids) const;

  std::unique_ptr<Normalizer> normalizer_;
  std::unique_ptr<PreTokenizer> pre_tokenizer_;
  std::unique_ptr<TokenModel> model_;
  std::unique_ptr<Decoder> decoder_;
  AddedTokens added_;
  std::unordered_map<int32_t, std::string> pieces_;
  std::vector<int32_t> template_before_, template_after_;  // what encode_with_special puts around a text
  int32_t vocab_size_ = 0;
  mutable WordCache words_;
};

}  // namespace ingot::data
