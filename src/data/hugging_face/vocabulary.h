// The tokens of a model: text to id, and all tokens that a text begins with.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace ingot::data {

class Vocabulary {
 public:
  /// Throws DataError for an id that is negative or beyond what any model has; a token given twice keeps the last id.
  void add(const std::string& token, int64_t id);
  /// The id, or -1.
  int32_t find(std::string_view token) const {
    const auto found = ids_.find(token);
    return found == ids_.end() ? -1 : found->second;
  }
  /// Ids of "<0x00>" to "<0xFF>"; empty unless all are there.
  std::vector<int32_t> byte_ids() const;
  /// Whether some token crosses the border of two words (words.h).
  bool crosses_words() const;
  const auto& entries() const { return ids_; }

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  std::unordered_map<std::string, int32_t, Hash, std::equal_to<>> ids_;
};

/// The tokens as a tree of bytes.
class PrefixTree {
 public:
  explicit PrefixTree(const Vocabulary& vocabulary);

  /// Calls visit(length, id) for every token that is a prefix of `text`, shortest first.
  template <class Visit>
  void visit_prefixes(std::string_view text, const Visit& visit) const {
    int32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<unsigned char>(text[i]));
      if (node < 0) return;
      if (nodes_[static_cast<size_t>(node)].id >= 0) visit(i + 1, nodes_[static_cast<size_t>(node)].id);
    }
  }

 private:
  struct Node {
    int32_t first_child = 0, children = 0;  // contiguous, sorted by byte
    int32_t id = -1;
    unsigned char byte = 0;
  };
  int32_t child(int32_t node, unsigned char byte) const;

  std::vector<Node> nodes_;
};

}  // namespace ingot::data
