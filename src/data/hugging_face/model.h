// The `model` of a tokenizer.json: the ids of one pre-token.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string_view>
#include <vector>

#include "data/hugging_face/vocabulary.h"

namespace ingot::data {

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  /// Appends the ids of `text`, which is valid UTF-8 and not empty.
  virtual void encode(std::string_view text, std::vector<int32_t>& ids) const = 0;
  /// Whether encoding the words of a text one by one gives the ids of the whole.
  virtual bool words_are_independent() const = 0;
  virtual int32_t unk_id() const = 0;
  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

/// The type of a model; files of old have none, and some field of theirs says it.
std::string kind_of_model(const nlohmann::json& json);

/// BPE, Unigram, WordPiece or WordLevel from its JSON. Throws DataError naming a kind or an option that is not supported.
std::unique_ptr<TokenModel> make_token_model(const nlohmann::json& json);
std::unique_ptr<TokenModel> make_bpe(const nlohmann::json& json);
/// A BPE over ByteLevel's alphabet that takes the bytes themselves; null for a model that is none.
std::unique_ptr<TokenModel> make_byte_level_bpe(const nlohmann::json& json);
std::unique_ptr<TokenModel> make_unigram(const nlohmann::json& json);
std::unique_ptr<TokenModel> make_word_level(const nlohmann::json& json);
std::unique_ptr<TokenModel> make_wordpiece(const nlohmann::json& json);

}  // namespace ingot::data
