// Stragglers among the ranks of all nodes: each node tells the others, where they meet, what its ranks' last steps took, and the first one
// of the round compares. A node whose ranks are all slow is found like this, and in no other way.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "resilience/node_store.h"
#include "resilience/nodes.h"
#include "resilience/straggler.h"

namespace ingot::resilience {

class StragglerExchange {
 public:
  /// Of a job of one node nothing is written. `remark`: what there is to say of this node, when there is reason to. `every_s`: between two
  /// times that a node tells its steps.
  StragglerExchange(std::shared_ptr<NodeStore> store, std::function<std::string()> remark, double every_s = 2)
      : store_(std::move(store)), remark_(std::move(remark)), every_s_(every_s) {}

  void begin(const Round& round);

  struct News {
    std::vector<Straggler> stragglers, recovered;  // `recovered`: rank, node and description alone
  };
  /// `own`: of the ranks here. The news is what the first node of the round finds, others hear of none.
  News look(std::vector<RankSteps> own);

 private:
  void tell(const std::vector<RankSteps>& own);
  void read_others(std::vector<RankSteps>& all);

  std::shared_ptr<NodeStore> store_;
  const std::function<std::string()> remark_;
  const double every_s_;
  Round round_;
  StragglerWatch watch_;
  std::chrono::steady_clock::time_point told_at_{};
};

}  // namespace ingot::resilience
