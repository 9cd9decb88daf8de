// SentencePiece's compiled normalisation rules as the normalizer 'Precompiled' of a tokenizer.json carries them: a double-array
// trie from character sequences to their replacements. Applied as Hugging Face does it: to whole grapheme clusters of up to five bytes,
// else to each character. Any number of threads may apply one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/hugging_face/regex.h"

namespace ingot::data {

class Precompiled {
 public:
  /// `map`: uint32 size in bytes of the trie, the trie, texts that end with NUL. Throws DataError for one that is cut short; an offset
  /// that points outside matches nothing.
  explicit Precompiled(std::string_view map);
  /// `text` is valid UTF-8.
  std::string apply(const std::string& text) const;

 private:
  // The offset in texts_ of what replaces the shortest beginning of `piece` that the trie holds, or -1.
  int64_t replacement_of(std::string_view piece) const;
  bool replace(std::string_view piece, std::string& out) const;

  std::vector<uint32_t> trie_;
  std::string texts_;
  Regex clusters_ = Regex::grapheme_clusters();
};

}  // namespace ingot::data
