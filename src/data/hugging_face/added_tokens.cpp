#include "data/hugging_face/added_tokens.h"

#include <algorithm>

#include "data/hugging_face/fields.h"
#include "data/utf8.h"

namespace ingot::data {
namespace {

size_t space_bytes_after(std::string_view text, size_t at) {
  size_t end = at;
  while (end < text.size()) {
    const CodePoint c = decode_utf8(text.substr(end));
    if (!is_unicode_space(c.value)) break;
    end += static_cast<size_t>(c.length);
  }
  return end - at;
}

size_t character_begin(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

size_t space_bytes_before(std::string_view text, size_t at, size_t floor) {
  size_t begin = at;
  while (begin > floor) {
    const size_t previous = character_begin(text, begin);
    if (previous < floor || !is_unicode_space(decode_utf8(text.substr(previous)).value)) break;
    begin = previous;
  }
  return at - begin;
}

bool is_word_character(std::string_view character) {
  static const Regex pattern(R"([\w\p{Join_Control}])");
  return !pattern.find_all(character).empty();
}

// Whether neither neighbour of [begin, end) is a word character.
bool stands_alone(std::string_view text, size_t begin, size_t end) {
  const bool left = begin == 0 || !is_word_character(text.substr(character_begin(text, begin), begin - character_begin(text, begin)));
  return left && (end == text.size() || !is_word_character(text.substr(end, static_cast<size_t>(utf8_length(text[end])))));
}

}  // namespace

AddedTokens::AddedTokens(const nlohmann::json& list, const Normalizer& normalizer) {
  for (const auto& entry : list) {
    AddedToken token;
    token.content = entry.at("content").get<std::string>();
    Vocabulary checked;
    checked.add(token.content, entry.at("id").get<int64_t>());
    token.id = checked.find(token.content);
    token.special = field_or(entry, "special", false);
    token.single_word = field_or(entry, "single_word", false);
    token.lstrip = field_or(entry, "lstrip", false);
    token.rstrip = field_or(entry, "rstrip", false);
    token.normalized = field_or(entry, "normalized", !token.special);
    token.spelling = token.normalized ? normalizer.apply(token.content) : token.content;
    tokens_.push_back(token);
    if (token.special) special_ids_.insert(token.id);
    Group& group = groups_[token.normalized];
    if (token.spelling.empty() || group.spellings.find(token.spelling) >= 0) continue;
    group.spellings.add(token.spelling, static_cast<int64_t>(tokens_.size()) - 1);
    group.first_bytes[static_cast<unsigned char>(token.spelling[0])] = true;
  }
  for (Group& group : groups_) {
    if (!group.spellings.entries().empty()) group.tree = std::make_unique<PrefixTree>(group.spellings);
  }
}

std::vector<AddedTokens::Part> AddedTokens::cut(std::string_view text, bool normalized) const {
  std::vector<Part> parts;
  const Group& group = groups_[normalized];
  size_t done = 0;
  for (size_t at = 0; group.tree && at < text.size();) {
    if (!group.first_bytes[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    size_t length = 0;
    int32_t index = -1;
    group.tree->visit_prefixes(text.substr(at), [&](size_t bytes, int32_t found) { length = bytes, index = found; });
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    size_t begin = at, end = at + length;
    at = end;
    if (token.single_word && !stands_alone(text, begin, end)) continue;
    if (token.lstrip) begin -= space_bytes_before(text, begin, done);
    if (token.rstrip) end += space_bytes_after(text, end);
    if (done < begin) parts.push_back({done, begin, -1});
    parts.push_back({begin, end, token.id});
    done = at = end;
  }
  if (done < text.size()) parts.push_back({done, text.size(), -1});
  return parts;
}

}  // namespace ingot::data
