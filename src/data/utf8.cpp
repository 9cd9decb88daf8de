#include "data/utf8.h"

#include <algorithm>
#include <cstring>

namespace ingot::data {

CodePoint decode_utf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return {first, 1, true};
  // The second byte's range excludes overlong forms, surrogates and values beyond U+10FFFF (Unicode table 3-7).
  int length = 0;
  unsigned low = 0x80, high = 0xBF;
  if (first >= 0xC2 && first <= 0xDF) length = 2;
  else if (first >= 0xE0 && first <= 0xEF) length = 3, low = first == 0xE0 ? 0xA0 : 0x80, high = first == 0xED ? 0x9F : 0xBF;
  else if (first >= 0xF0 && first <= 0xF4) length = 4, low = first == 0xF0 ? 0x90 : 0x80, high = first == 0xF4 ? 0x8F : 0xBF;
  else return {0xFFFD, 1, false};
  char32_t value = first & (0xFFu >> (length + 1));
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= text.size() || byte(static_cast<size_t>(i)) < low || byte(static_cast<size_t>(i)) > high)
      return {0xFFFD, i, false};
    value = value << 6 | (byte(static_cast<size_t>(i)) & 0x3F);
    low = 0x80, high = 0xBF;
  }
  return {value, length, true};
}

void append_utf8(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += {static_cast<char>(0xC0 | c >> 6), static_cast<char>(0x80 | (c & 0x3F))};
  } else if (c < 0x10000) {
    out += {static_cast<char>(0xE0 | c >> 12), static_cast<char>(0x80 | (c >> 6 & 0x3F)), static_cast<char>(0x80 | (c & 0x3F))};
  } else {
    out += {static_cast<char>(0xF0 | c >> 18), static_cast<char>(0x80 | (c >> 12 & 0x3F)), static_cast<char>(0x80 | (c >> 6 & 0x3F)),
            static_cast<char>(0x80 | (c & 0x3F))};
  }
}

std::string to_utf8(char32_t code_point) {
  std::string out;
  append_utf8(out, code_point);
  return out;
}

namespace {

// Bytes of the leading ASCII run, eight at a time: most text is nothing else.
size_t ascii_prefix(std::string_view text) {
  size_t i = 0;
  for (; i + 8 <= text.size(); i += 8) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, 8);
    if (word & 0x8080808080808080) break;
  }
  while (i < text.size() && static_cast<unsigned char>(text[i]) < 0x80) ++i;
  return i;
}

}  // namespace

bool is_ascii(std::string_view text) { return ascii_prefix(text) == text.size(); }

bool is_valid_utf8(std::string_view text) {
  while (true) {
    text.remove_prefix(ascii_prefix(text));
    if (text.empty()) return true;
    const CodePoint c = decode_utf8(text);
    if (!c.valid) return false;
    text.remove_prefix(static_cast<size_t>(c.length));
  }
}

size_t complete_utf8_prefix(std::string_view text) {
  // Only the last three bytes can open a sequence that is still incomplete.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const std::string_view tail = text.substr(text.size() - back);
    if ((static_cast<unsigned char>(tail[0]) & 0xC0) == 0x80) continue;
    const CodePoint c = decode_utf8(tail);
    const bool cut_short = !c.valid && static_cast<size_t>(c.length) == back && static_cast<size_t>(utf8_length(tail[0])) > back &&
                           static_cast<unsigned char>(tail[0]) >= 0xC2 && static_cast<unsigned char>(tail[0]) <= 0xF4;
    return cut_short ? text.size() - back : text.size();
  }
  return text.size();
}

std::string replace_invalid_utf8(std::string_view text, int64_t& replaced) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t plain = ascii_prefix(text);
    out.append(text.substr(0, plain));
    text.remove_prefix(plain);
    if (text.empty()) break;
    const CodePoint c = decode_utf8(text);
    if (c.valid) {
      out.append(text.substr(0, static_cast<size_t>(c.length)));
    } else {
      out.append("\xEF\xBF\xBD");
      ++replaced;
    }
    text.remove_prefix(static_cast<size_t>(c.length));
  }
  return out;
}

std::string_view valid_utf8(std::string_view text, std::string& repaired) {
  if (is_valid_utf8(text)) return text;
  int64_t replaced = 0;
  return repaired = replace_invalid_utf8(text, replaced);
}

bool is_unicode_space(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 ||
         c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

}  // namespace ingot::data
