// Tokens that are looked for in the text itself, before the model: special ones like "<s>", and words that users added.
#pragma once

#include <array>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "data/hugging_face/normalizer.h"
#include "data/hugging_face/vocabulary.h"

namespace ingot::data {

struct AddedToken {
  std::string content;
  std::string spelling;  // what is looked for, and what decoding gives: the content, normalised where `normalized` says so
  int32_t id = -1;
  bool special = false, single_word = false, lstrip = false, rstrip = false;
  bool normalized = false;  // looked for after normalisation, not before
};

class AddedTokens {
 public:
  AddedTokens() = default;
  /// From the JSON list of a tokenizer.json; what is looked for after normalisation is normalised itself.
  AddedTokens(const nlohmann::json& list, const Normalizer& normalizer);

  struct Part {
    size_t begin = 0, end = 0;  // in the text
    int32_t id = -1;            // of the token that stands here; -1: plain text
  };
  /// Cuts a text at the tokens that are looked for before (`normalized` false) or after normalisation. Leftmost first, and of
  /// those that begin together the longest.
  std::vector<Part> cut(std::string_view text, bool normalized) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }
  bool is_special(int32_t id) const { return special_ids_.contains(id); }

 private:
  std::vector<AddedToken> tokens_;
  std::unordered_set<int32_t> special_ids_;
  struct Group {
    Vocabulary spellings;  // to index in tokens_
    std::unique_ptr<PrefixTree> tree;
    std::array<bool, 256> first_bytes{};
  };
  Group groups_[2];  // before and after normalisation
};

}  // namespace ingot::data
