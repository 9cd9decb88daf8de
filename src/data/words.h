// Word borders for vocabularies of SentencePiece's kind, where a piece begins with the white space before it ("▁the"). Where
// no piece of a vocabulary crosses a border, each word may be encoded alone with the ids of the whole text.
#pragma once

#include <string_view>

namespace ingot::data {

inline constexpr std::string_view kWordMark = "\xE2\x96\x81";  // U+2581, which stands for a space

/// Whether any border lies inside `piece`: before a space that follows something else, and on both sides of a newline.
bool crosses_word_border(std::string_view piece);

/// Bytes of the first word of `text`, which must not be empty: white space first, then the rest up to the next border. Both
/// spellings of a space count, " " and "▁".
size_t word_length(std::string_view text);

template <class Visit>
void for_each_word(std::string_view text, const Visit& visit) {
  while (!text.empty()) {
    const size_t length = word_length(text);
    visit(text.substr(0, length));
    text.remove_prefix(length);
  }
}

}  // namespace ingot::data
