#include "plan/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>

#include "base/error.h"
#include "base/random.h"

namespace ingot::plan {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

void check(const RecoveryPolicy& policy, const RecoveryCosts& c, double days) {
  const auto is_time = [](double s) { return std::isfinite(s) && s >= 0; };
  if (c.nodes < 1 || policy.spares < 0 || !(days > 0 && days <= 36500) || !(c.step_s > 0) || !is_time(c.step_s) ||
      !is_time(c.memory_stall_s) || !is_time(c.stay_s) || !is_time(c.save_every_s) || !is_time(c.repair_h) ||
      !(c.node_loss_share >= 0 && c.node_loss_share <= 1))
    throw base::ConfigError(
        "times must be finite and not negative, steps take some, the share of lost nodes is between 0 and 1, there is a node at least, and "
        "a run "
        "takes up to 36,500 days");
}

class Run {
 public:
  Run(const RecoveryPolicy& policy, const RecoveryCosts& costs, double end_s, uint64_t seed)
      : policy_(policy),
        costs_(costs),
        end_s_(end_s),
        key_(base::stream_key(seed, "recovery")),
        at_work_(costs.nodes),
        spares_(policy.spares) {
    const auto& r = costs.reliability;
    const double every_s = costs.save_every_s > 0 ? costs.save_every_s : best_save_interval_s(r);
    work_s_ = policy.in_memory ? costs.step_s : every_s;
    stall_s_ = policy.in_memory ? costs.memory_stall_s : r.save_stall_s;
    recovery_s_ = policy.stays ? costs.stay_s : r.restart_s;
    next_failure_s_ = now_s_ + to_failure();
  }

  RecoveryOutcome result() {
    while (now_s_ < end_s_) {
      const double repair_s = repairs_.empty() ? kNever : repairs_.top();
      const double until_s = std::min({next_failure_s_, repair_s, end_s_});
      pass(until_s);
      if (now_s_ < until_s) continue;  // something of its own happened
      if (until_s == next_failure_s_) fail();
      else if (until_s == repair_s) repair();
    }
    outcome_.goodput = kept_s_ / end_s_;
    outcome_.goodput_of_paid = outcome_.goodput * static_cast<double>(costs_.nodes) / static_cast<double>(costs_.nodes + policy_.spares);
    outcome_.waiting /= end_s_, outcome_.recovering /= end_s_;
    return outcome_;
  }

 private:
  double uniform() { return base::uniform_at(key_, drawn_++); }
  double to_failure() {
    const double rate = costs_.reliability.failures_per_s() * static_cast<double>(at_work_) / static_cast<double>(costs_.nodes);
    return rate > 0 ? -std::log1p(-uniform()) / rate : kNever;
  }
  bool is_short() const { return at_work_ < costs_.nodes && !(policy_.shrinks && at_work_ > 0); }

  // Until then, or until something begins that goes by another rule.
  void pass(double until_s) {
    if (is_short()) {
      outcome_.waiting += until_s - now_s_;
      now_s_ = until_s;
    } else if (recovered_s_ > now_s_) {
      const double to_s = std::min(until_s, recovered_s_);
      outcome_.recovering += to_s - now_s_;
      now_s_ = to_s;
    } else {
      work(until_s);
    }
  }

  // A cycle is the work between two saves, at the speed of the nodes that are there, and a save.
  void work(double until_s) {
    const double cycle_s = work_s_ * static_cast<double>(costs_.nodes) / static_cast<double>(at_work_) + stall_s_;
    const double to_end_s = cycle_s - in_cycle_s_;
    if (until_s - now_s_ < to_end_s) {
      in_cycle_s_ += until_s - now_s_;
      now_s_ = until_s;
      return;
    }
    now_s_ += to_end_s;
    kept_s_ += work_s_;
    in_cycle_s_ = 0;
    if (back_ > 0 && at_work_ < costs_.nodes) {  // those that came back are taken in
      const int64_t taken = std::min(back_, costs_.nodes - at_work_);
      at_work_ += taken, back_ -= taken;
      recovered_s_ = now_s_ + recovery_s_;
      next_failure_s_ = now_s_ + to_failure();
      return;
    }
    const double whole = std::floor((until_s - now_s_) / cycle_s);
    if (back_ > 0 || whole < 1) return;
    kept_s_ += whole * work_s_;
    now_s_ += whole * cycle_s;
  }

  void fail() {
    ++outcome_.failures;
    in_cycle_s_ = 0;
    if (uniform() < costs_.node_loss_share) {
      --at_work_;
      repairs_.push(now_s_ + costs_.repair_h * 3600);
      if (spares_ > 0) --spares_, ++at_work_;
    }
    recovered_s_ = now_s_ + recovery_s_;
    next_failure_s_ = is_short() ? kNever : now_s_ + to_failure();
  }

  void repair() {
    repairs_.pop();
    if (is_short()) {
      ++at_work_;
      recovered_s_ = now_s_ + recovery_s_;
      next_failure_s_ = is_short() ? kNever : now_s_ + to_failure();
    } else if (at_work_ < costs_.nodes) {
      ++back_;
    } else {
      ++spares_;
    }
  }

  const RecoveryPolicy& policy_;
  const RecoveryCosts& costs_;
  double end_s_;
  uint64_t key_, drawn_ = 0;
  int64_t at_work_, spares_, back_ = 0;
  double work_s_ = 0, stall_s_ = 0, recovery_s_ = 0;
  double now_s_ = 0, next_failure_s_ = 0, recovered_s_ = 0, in_cycle_s_ = 0, kept_s_ = 0;
  std::priority_queue<double, std::vector<double>, std::greater<>> repairs_;
  RecoveryOutcome outcome_;
};

}  // namespace

std::vector<RecoveryPolicy> recovery_policies(int64_t spares) {
  std::vector<RecoveryPolicy> all = {{.name = "restart, wait for the node"}};
  if (spares > 0) all.push_back({.name = fmt::format("restart, {} spare node{}", spares, spares == 1 ? "" : "s"), .spares = spares});
  all.push_back({.name = "restart, shrink", .shrinks = true});
  all.push_back({.name = "stay, shrink", .shrinks = true, .stays = true});
  all.push_back({.name = "restart, shrink, every step in memory", .shrinks = true, .in_memory = true});
  all.push_back({.name = "stay, shrink, every step in memory", .shrinks = true, .stays = true, .in_memory = true});
  if (spares > 0) all.push_back({.name = "the same with the spares", .spares = spares, .shrinks = true, .stays = true, .in_memory = true});
  return all;
}

RecoveryOutcome draw_recovery(const RecoveryPolicy& policy, const RecoveryCosts& costs, double days, uint64_t seed) {
  check(policy, costs, days);
  return Run(policy, costs, days * 86400, seed).result();
}

}  // namespace ingot::plan
