#include "data/mixture.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace ingot::data {

Mixture::Mixture(const std::vector<double>& weights) : sources_(weights.size()) {
  std::vector<int32_t> open;
  for (size_t s = 0; s < weights.size(); ++s) {
    if (!(weights[s] >= 0) || !std::isfinite(weights[s]))
      throw base::ConfigError("source {} has weight {}: it must be 0 or more", s, weights[s]);
    if (weights[s] == 0) continue;
    open.push_back(static_cast<int32_t>(nodes_.size()));
    nodes_.push_back({.weight = weights[s], .source = s});
  }
  if (open.empty()) throw base::ConfigError("no source has a positive weight");
  // Huffman's tree: joining the two lightest keeps the shares of every node as even as they can be, and the errors small.
  while (open.size() > 1) {
    std::stable_sort(open.begin(), open.end(),
                     [&](int32_t a, int32_t b) { return nodes_[static_cast<size_t>(a)].weight > nodes_[static_cast<size_t>(b)].weight; });
    const int32_t right = open.back(), left = open[open.size() - 2];
    const double left_weight = nodes_[static_cast<size_t>(left)].weight, weight = left_weight + nodes_[static_cast<size_t>(right)].weight;
    open.resize(open.size() - 2);
    open.push_back(static_cast<int32_t>(nodes_.size()));
    nodes_.push_back({weight, static_cast<uint64_t>(std::llround(left_weight / weight * 0x1p32)), left, right, 0});
  }
  root_ = open[0];
}

int64_t Mixture::left_count(const Node& node, int64_t samples) {
  using Wide = unsigned __int128;
  return static_cast<int64_t>((static_cast<Wide>(samples) * node.left_share + (uint64_t{1} << 31)) >> 32);
}

Mixture::Pick Mixture::at(int64_t sample) const {
  const Node* node = &nodes_[static_cast<size_t>(root_)];
  while (node->left >= 0) {
    const int64_t before = left_count(*node, sample), after = left_count(*node, sample + 1);
    const bool goes_left = after > before;
    sample = goes_left ? before : sample - before;
    node = &nodes_[static_cast<size_t>(goes_left ? node->left : node->right)];
  }
  return {node->source, sample};
}

void Mixture::count(int32_t index, int64_t samples, std::vector<int64_t>& counts) const {
  const Node& node = nodes_[static_cast<size_t>(index)];
  if (node.left < 0) {
    counts[node.source] = samples;
    return;
  }
  const int64_t left = left_count(node, samples);
  count(node.left, left, counts);
  count(node.right, samples - left, counts);
}

std::vector<int64_t> Mixture::counts(int64_t samples) const {
  std::vector<int64_t> counts(sources_, 0);
  count(root_, samples, counts);
  return counts;
}

}  // namespace ingot::data
