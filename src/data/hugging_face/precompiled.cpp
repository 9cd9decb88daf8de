#include "data/hugging_face/precompiled.h"

#include <cstring>

#include "base/error.h"
#include "data/utf8.h"

namespace ingot::data {

using base::DataError;

Precompiled::Precompiled(std::string_view map) {
  uint32_t trie_bytes = 0;
  if (map.size() < sizeof(trie_bytes)) throw DataError("its precompiled_charsmap has {} bytes", map.size());
  std::memcpy(&trie_bytes, map.data(), sizeof(trie_bytes));
  map.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > map.size())
    throw DataError("its precompiled_charsmap has {} bytes and says that its trie has {}", map.size(), trie_bytes);
  trie_.resize(trie_bytes / 4);
  std::memcpy(trie_.data(), map.data(), trie_bytes);
  texts_ = map.substr(trie_bytes);
  if (!is_valid_utf8(texts_)) throw DataError("the texts of its precompiled_charsmap are not UTF-8");
}

// The layout of a unit is that of darts-clone: label in bits 0-7 and 31, leaf in bit 8, offset above with its scale in bit 9.
int64_t Precompiled::replacement_of(std::string_view piece) const {
  const auto offset = [](uint32_t unit) { return static_cast<size_t>(unit >> 10) << ((unit & (1u << 9)) >> 6); };
  size_t node = offset(trie_[0]);
  for (const char c : piece) {
    const auto byte = static_cast<unsigned char>(c);
    node ^= byte;
    if (byte == 0 || node >= trie_.size()) return -1;
    const uint32_t unit = trie_[node];
    if ((unit & (1u << 31 | 0xFF)) != byte) return -1;
    node ^= offset(unit);
    if (!(unit >> 8 & 1)) continue;
    const size_t text = node < trie_.size() ? trie_[node] & 0x7FFFFFFF : texts_.size();
    const bool begins_a_character = text < texts_.size() && (static_cast<unsigned char>(texts_[text]) & 0xC0) != 0x80;
    return begins_a_character ? static_cast<int64_t>(text) : -1;
  }
  return -1;
}

bool Precompiled::replace(std::string_view piece, std::string& out) const {
  const int64_t text = replacement_of(piece);
  if (text < 0) return false;
  const std::string_view rest = std::string_view(texts_).substr(static_cast<size_t>(text));
  out += rest.substr(0, rest.find('\0'));
  return true;
}

std::string Precompiled::apply(const std::string& text) const {
  constexpr size_t kLongestCluster = 5;
  std::string out;
  for (const auto& match : clusters_.find_all(text)) {
    std::string_view cluster = std::string_view(text).substr(match.begin, match.end - match.begin);
    if (cluster.size() <= kLongestCluster && replace(cluster, out)) continue;
    while (!cluster.empty()) {
      const std::string_view character = cluster.substr(0, static_cast<size_t>(utf8_length(cluster[0])));
      if (!replace(character, out)) out += character;
      cluster.remove_prefix(character.size());
    }
  }
  return out;
}

}  // namespace ingot::data
