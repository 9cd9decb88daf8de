// How trials of a round that failed (bisection.h) went on each of its nodes: all nodes come to one verdict.
//
//   trial.N.K.I   how trial K of round N went on node I of that round; trial 0 is the failure itself
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "resilience/bisection.h"
#include "resilience/node_store.h"
#include "resilience/round.h"

namespace ingot::resilience {

class TrialExchange {
 public:
  /// `is_there`: whether a node beats.
  TrialExchange(std::shared_ptr<NodeStore> store, Round round, std::function<bool(const Node&)> is_there)
      : store_(std::move(store)), round_(std::move(round)), is_there_(std::move(is_there)) {}

  /// While it goes on here: "", or how it failed on another node. Throws CommError.
  std::string failure_elsewhere(int64_t trial) const;
  /// Of all nodes, once each has said how it went there. Nothing when one of them is lost before, does not say it within `limit`, or `stop`
  /// says so. Throws CommError.
  std::optional<std::vector<NodeOutcome>> agree(int64_t trial, const NodeOutcome& own, const std::function<bool()>& stop,
                                                std::chrono::duration<double> limit) const;

 private:
  std::string name(int64_t trial, size_t node) const;
  std::optional<NodeOutcome> said(int64_t trial, size_t node) const;

  std::shared_ptr<NodeStore> store_;
  Round round_;
  std::function<bool(const Node&)> is_there_;
};

}  // namespace ingot::resilience
