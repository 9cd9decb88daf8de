// Nodes whose ranks make one job, until one of them fails, is lost, or nodes come or go (nodes.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::resilience {

struct Node {
  int64_t id = 0, ranks = 1;
  std::string host, address;
  int port = 0;  // where its launcher answers (reachability.h)
};

struct Round {
  int64_t number = 0;
  int64_t first = 0;        // the job's first round
  std::vector<Node> nodes;  // in the order of their ranks
  size_t own = 0;           // which of them this one is
  int port = 0;             // of the ranks' store, at the first node's address

  int64_t ranks() const;
  int64_t first_rank() const;          // of this node
  size_t node_of(int64_t rank) const;  // nodes.size() where there is no such rank
};

}  // namespace ingot::resilience
