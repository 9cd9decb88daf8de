// Models that know words: WordPiece takes the longest token that a word goes on with (Wu et al. 2016, section 4.1, as BERT has it),
// WordLevel whole words only.
#include "data/hugging_face/fields.h"
#include "data/hugging_face/model.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

using base::DataError;

class WordModel : public TokenModel {
 public:
  explicit WordModel(const nlohmann::json& json) {
    for (const auto& [token, id] : json.at("vocab").items()) vocabulary_.add(token, id.template get<int64_t>());
    unk_token_ = json.at("unk_token").get<std::string>();
    unk_ = vocabulary_.find(unk_token_);
  }

  bool words_are_independent() const override { return false; }
  int32_t unk_id() const override { return unk_; }

 protected:
  int32_t unknown(std::string_view word) const {
    if (unk_ < 0) throw DataError("'{}' is in no token, and the unknown token '{}' is not in the vocabulary", word, unk_token_);
    return unk_;
  }

 private:
  std::string unk_token_;
  int32_t unk_ = -1;
};

class WordLevel : public WordModel {
 public:
  using WordModel::WordModel;
  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    const int32_t id = vocabulary_.find(word);
    ids.push_back(id >= 0 ? id : unknown(word));
  }
};

class WordPiece : public WordModel {
 public:
  explicit WordPiece(const nlohmann::json& json)
      : WordModel(json),
        longest_word_(field_or<int64_t>(json, "max_input_chars_per_word", 100)),
        beginnings_(vocabulary_),
        continuations_(without_prefix(vocabulary_, field_or<std::string>(json, "continuing_subword_prefix", "##"))) {}

  void encode(std::string_view word, std::vector<int32_t>& ids) const override {
    const size_t before = ids.size();
    for (std::string_view rest = word; !rest.empty();) {
      size_t length = 0;
      int32_t longest = -1;
      const auto& tokens = rest.size() == word.size() ? beginnings_ : continuations_;
      if (!is_too_long(word)) tokens.visit_prefixes(rest, [&](size_t bytes, int32_t id) { length = bytes, longest = id; });
      if (longest < 0) {  // the whole word is unknown, whatever it begins with
        ids.resize(before);
        return ids.push_back(unknown(word));
      }
      ids.push_back(longest);
      rest.remove_prefix(length);
    }
  }

 private:
  bool is_too_long(std::string_view word) const {
    if (static_cast<int64_t>(word.size()) <= longest_word_) return false;
    int64_t characters = 0;
    for (size_t at = 0; at < word.size(); at += static_cast<size_t>(utf8_length(word[at]))) ++characters;
    return characters > longest_word_;
  }

  static Vocabulary without_prefix(const Vocabulary& vocabulary, const std::string& prefix) {
    Vocabulary continuations;
    for (const auto& [token, id] : vocabulary.entries()) {
      if (token.starts_with(prefix)) continuations.add(token.substr(prefix.size()), id);
    }
    return continuations;
  }

  int64_t longest_word_;
  PrefixTree beginnings_, continuations_;
};

}  // namespace

std::unique_ptr<TokenModel> make_word_level(const nlohmann::json& json) { return std::make_unique<WordLevel>(json); }
std::unique_ptr<TokenModel> make_wordpiece(const nlohmann::json& json) { return std::make_unique<WordPiece>(json); }

}  // namespace ingot::data
