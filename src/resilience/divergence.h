// Which rank left the common path, told from the collectives that each began: those of one role begin the same ones in the same order.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "comm/heartbeat.h"

namespace ingot::resilience {

struct RankHistory {
  int rank = 0;
  int64_t role = 0;
  std::vector<comm::BegunOperation> operations;  // oldest first; the last ones of a rank
};

struct Divergence {
  std::vector<int> ranks;   // those that do as fewest do; all of them where none are fewer
  std::string description;  // "rank 2 began all_gather of 8 B Long on axis data, ranks [0, 1, 3] all_reduce of 8 B Long on axis data, …"
};

/// The first place at which ranks of one role differ, of those places that are still known of at least two of them.
std::optional<Divergence> find_divergence(const std::vector<RankHistory>& histories);

}  // namespace ingot::resilience
