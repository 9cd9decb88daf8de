#include "data/hugging_face/vocabulary.h"

#include <algorithm>

#include "base/error.h"
#include "data/sentencepiece_model.h"
#include "data/words.h"

namespace ingot::data {
namespace {

constexpr int64_t kLargestId = 10'000'000;

}  // namespace

void Vocabulary::add(const std::string& token, int64_t id) {
  if (id < 0 || id > kLargestId) throw base::DataError("its token '{}' has the id {}", token, id);
  ids_.insert_or_assign(token, static_cast<int32_t>(id));
}

std::vector<int32_t> Vocabulary::byte_ids() const {
  std::vector<int32_t> ids;
  for (int byte = 0; byte < 256; ++byte) {
    ids.push_back(find(piece_of_byte(byte)));
    if (ids.back() < 0) return {};
  }
  return ids;
}

bool Vocabulary::crosses_words() const {
  return std::any_of(ids_.begin(), ids_.end(), [](const auto& entry) { return !entry.first.empty() && crosses_word_border(entry.first); });
}

PrefixTree::PrefixTree(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, int32_t>> sorted;
  for (const auto& [token, id] : vocabulary.entries()) {
    if (!token.empty()) sorted.emplace_back(token, id);
  }
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return std::lexicographical_compare(a.first.begin(), a.first.end(), b.first.begin(), b.first.end(),
                                        [](char x, char y) { return static_cast<unsigned char>(x) < static_cast<unsigned char>(y); });
  });
  struct Range {
    size_t begin, end;  // of `sorted`: the tokens below a node
    size_t depth;
  };
  std::vector<Range> ranges{{0, sorted.size(), 0}};
  nodes_.emplace_back();
  for (size_t n = 0; n < nodes_.size(); ++n) {
    Range range = ranges[n];
    if (range.begin < range.end && sorted[range.begin].first.size() == range.depth) nodes_[n].id = sorted[range.begin++].second;
    nodes_[n].first_child = static_cast<int32_t>(nodes_.size());
    while (range.begin < range.end) {
      const char byte = sorted[range.begin].first[range.depth];
      size_t end = range.begin;
      while (end < range.end && sorted[end].first[range.depth] == byte) ++end;
      ranges.push_back({range.begin, end, range.depth + 1});
      nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
      ++nodes_[n].children;
      range.begin = end;
    }
  }
}

int32_t PrefixTree::child(int32_t node, unsigned char byte) const {
  const auto first = nodes_.begin() + nodes_[static_cast<size_t>(node)].first_child,
             last = first + nodes_[static_cast<size_t>(node)].children;
  const auto found = std::lower_bound(first, last, byte, [](const Node& n, unsigned char b) { return n.byte < b; });
  return found == last || found->byte != byte ? -1 : static_cast<int32_t>(found - nodes_.begin());
}

}  // namespace ingot::data
