#include "data/words.h"

namespace ingot::data {
namespace {

// Bytes of the space at the beginning of `text`, 0 if it begins with something else.
size_t space_length(std::string_view text) { return text.starts_with(' ') ? 1 : text.starts_with(kWordMark) ? kWordMark.size() : 0; }

}  // namespace

size_t word_length(std::string_view text) {
  if (text[0] == '\n') return 1;
  size_t i = 0;
  for (size_t space = 0; (space = space_length(text.substr(i))) > 0;) i += space;
  for (; i < text.size(); ++i) {
    if (text[i] == '\n' || text[i] == ' ') return i;
    if (text[i] == kWordMark[0] && text.substr(i).starts_with(kWordMark)) return i;
  }
  return i;
}

bool crosses_word_border(std::string_view piece) { return word_length(piece) < piece.size(); }

}  // namespace ingot::data
