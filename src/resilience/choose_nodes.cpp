#include "resilience/choose_nodes.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace ingot::resilience {

bool comes_before(const Candidate& a, const Candidate& b) {
  const auto key = [](const Candidate& c) {
    return std::tuple(c.node_rank < 0 ? std::numeric_limits<int64_t>::max() : c.node_rank, !c.was_there, c.id);
  };
  return key(a) < key(b);
}

int64_t largest_size(int64_t nodes, const RoundLimits& limits) {
  for (int64_t size = std::min(nodes, limits.wanted); size >= limits.least; --size)
    if (!limits.refused.contains(size)) return size;
  return 0;
}

std::vector<int64_t> choose_nodes(std::vector<Candidate> nodes, const RoundLimits& limits, double waited_s) {
  std::sort(nodes.begin(), nodes.end(), comes_before);
  std::vector<int64_t> ready;
  bool someone_ends = false;
  for (const auto& node : nodes) {
    if (node.is_ready) ready.push_back(node.id);
    else someone_ends = someone_ends || node.was_there;
  }
  const int64_t size = largest_size(static_cast<int64_t>(ready.size()), limits);
  if (size == 0 || (size < limits.wanted && (someone_ends || waited_s < limits.patience_s))) return {};
  ready.resize(static_cast<size_t>(size));
  return ready;
}

int64_t choose_cut_off(const std::vector<std::pair<int64_t, int64_t>>& cuts, const std::vector<int64_t>& order) {
  const auto cuts_of = [&](int64_t id) {
    return std::count_if(cuts.begin(), cuts.end(), [id](const auto& cut) { return cut.first == id || cut.second == id; });
  };
  return *std::max_element(order.rbegin(), order.rend(), [&](int64_t a, int64_t b) { return cuts_of(a) < cuts_of(b); });
}

}  // namespace ingot::resilience
