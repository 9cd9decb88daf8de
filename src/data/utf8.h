// UTF-8 as every text of this layer must be: checked on entry, so that tokenizers never meet a malformed sequence.
// What is not UTF-8 becomes U+FFFD, one per maximal invalid part (Unicode 15, section 3.9), as browsers and Python do it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ingot::data {

struct CodePoint {
  char32_t value = 0;
  int length = 0;  // bytes; of the invalid part to skip when !valid
  bool valid = false;
};

/// The code point at the beginning of `text`, which must not be empty.
CodePoint decode_utf8(std::string_view text);

void append_utf8(std::string& out, char32_t code_point);
std::string to_utf8(char32_t code_point);

bool is_valid_utf8(std::string_view text);
bool is_ascii(std::string_view text);

/// Length of the longest prefix that does not end inside a sequence which later bytes could complete.
size_t complete_utf8_prefix(std::string_view text);

/// Valid text comes back as it is; `replaced` counts the invalid parts.
std::string replace_invalid_utf8(std::string_view text, int64_t& replaced);
/// `text`, or where it is invalid what `repaired` then holds.
std::string_view valid_utf8(std::string_view text, std::string& repaired);

/// Bytes of the sequence that a valid first byte opens.
inline int utf8_length(char first) {
  const auto byte = static_cast<unsigned char>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

/// Unicode's White_Space property.
bool is_unicode_space(char32_t code_point);

}  // namespace ingot::data
