// Which of the nodes that are there make the next round of a job.
#pragma once

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

namespace ingot::resilience {

struct Candidate {
  int64_t id = 0;          // in the order of coming
  int64_t node_rank = -1;  // a place that it was given; -1: none
  bool was_there = false;  // in the round before
  bool is_ready = false;   // else it is still ending its ranks
};

struct RoundLimits {
  int64_t least = 1, wanted = 1;
  std::set<int64_t> refused;  // sizes that the job cannot be laid out for
  double patience_s = 0;      // how long fewer than wanted wait for more
};

/// The order of nodes in a round: by the place that they were given, then those that were in the round before, then who came first.
bool comes_before(const Candidate& a, const Candidate& b);

/// The largest number of `nodes` that the limits allow; 0: none.
int64_t largest_size(int64_t nodes, const RoundLimits& limits);

/// The ids of the next round in their order, or nothing while it is worth waiting: for nodes of the round before that end their ranks, and
/// for `patience_s` where fewer than wanted are ready. `nodes` are alive.
std::vector<int64_t> choose_nodes(std::vector<Candidate> nodes, const RoundLimits& limits, double waited_s);

/// Of nodes that are alive and do not reach each other the one that is to go: that of most `cuts` (pairs of ids), of several the one that
/// comes last in `order`.
int64_t choose_cut_off(const std::vector<std::pair<int64_t, int64_t>>& cuts, const std::vector<int64_t>& order);

}  // namespace ingot::resilience
