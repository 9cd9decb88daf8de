#include "data/process/text_parts.h"

#include <xxhash.h>

#include <algorithm>

#include "data/utf8.h"

namespace ingot::data::process {

int64_t characters_of(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> lines_with_ends(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return lines;
}

std::vector<std::string_view> paragraphs_with_ends(std::string_view text) {
  std::vector<std::string_view> paragraphs;
  bool is_open = false, was_blank = false;
  for (const auto line : lines_with_ends(text)) {
    const bool is_blank = trimmed(line).empty();
    const bool begins = !is_open || (was_blank && !is_blank);
    if (begins) paragraphs.push_back(line);
    else paragraphs.back() = {paragraphs.back().data(), paragraphs.back().size() + line.size()};
    is_open = true;
    was_blank = is_blank;
  }
  return paragraphs;
}

bool is_letter(char32_t c) {
  if (c < 0x80) return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return c >= 0xAA && !(c >= 0x2000 && c <= 0x2BFF) && !(c >= 0x3000 && c <= 0x303F) && !(c >= 0xFE00 && c <= 0xFE0F) &&
         !(c >= 0xFF00 && c <= 0xFF0F) && c != 0xFFFD && !(c >= 0x1F000 && c <= 0x1FFFF) && c != 0xD7 && c != 0xF7 && c != 0xAB &&
         c != 0xBB && c != 0xBF && c != 0xB7;
}

bool is_nested_too_deeply(std::string_view json) {
  constexpr int kDeepest = 200;
  int depth = 0, deepest = 0;
  bool inside = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (inside && c == '\\') ++i;
    else if (c == '"') inside = !inside;
    else if (!inside && (c == '{' || c == '[')) deepest = std::max(deepest, ++depth);
    else if (!inside && (c == '}' || c == ']')) --depth;
  }
  return deepest > kDeepest;
}

std::vector<uint64_t> word_hashes(std::string_view text) {
  std::vector<uint64_t> words;
  std::string word;
  const auto end_word = [&] {
    if (!word.empty()) words.push_back(XXH3_64bits(word.data(), word.size()));
    word.clear();
  };
  for (size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) < 0x80) {
      if (is_space(c)) end_word();
      else if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z')) word += c;
      else if (c >= 'A' && c <= 'Z') word += static_cast<char>(c + 32);
      ++i;
      continue;
    }
    const auto decoded = decode_utf8(text.substr(i));
    const auto bytes = static_cast<size_t>(std::max(1, decoded.length));
    if (is_unicode_space(decoded.value)) end_word();
    else if (is_letter(decoded.value)) word.append(text.substr(i, bytes));
    i += bytes;
  }
  end_word();
  return words;
}

uint64_t run_hash(const std::vector<uint64_t>& words, size_t at, size_t n) {
  uint64_t hash = 0;
  for (size_t i = at; i < at + n; ++i) hash = (hash ^ words[i]) * 0x9e3779b97f4a7c15 + (hash >> 29);
  return hash ^ (hash >> 32);
}

}  // namespace ingot::data::process
