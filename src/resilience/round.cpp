#include "resilience/round.h"

namespace ingot::resilience {

int64_t Round::ranks() const {
  int64_t sum = 0;
  for (const auto& node : nodes) sum += node.ranks;
  return sum;
}

int64_t Round::first_rank() const {
  int64_t sum = 0;
  for (size_t i = 0; i < own; ++i) sum += nodes[i].ranks;
  return sum;
}

size_t Round::node_of(int64_t rank) const {
  for (size_t i = 0; i < nodes.size(); ++i)
    if ((rank -= nodes[i].ranks) < 0) return i;
  return nodes.size();
}

}  // namespace ingot::resilience
