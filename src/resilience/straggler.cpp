#include "resilience/straggler.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace ingot::resilience {
namespace {

using Part = double comm::StepTimes::*;

// Of a rank's last steps.
struct Times {
  double median = 0, all_but_one = 0;  // above which all of them are, and the quickest two
};

Times times_of(const RankSteps& rank, Part part) {
  std::vector<double> values;
  for (size_t i = rank.steps.size() - StragglerWatch::kWindow; i < rank.steps.size(); ++i) values.push_back(rank.steps[i].*part);
  std::sort(values.begin(), values.end());
  return {values[values.size() / 2], values[1]};
}

// Of one part of the steps of all ranks.
class Comparison {
 public:
  Comparison(const std::vector<RankSteps>& ranks, Part part) {
    for (const auto& rank : ranks) {
      times_.push_back(times_of(rank, part));
      of_roles_[rank.role].push_back(times_.back().median);
    }
    for (auto& [role, medians] : of_roles_) std::sort(medians.begin(), medians.end());
  }

  double own_s(size_t index) const { return times_[index].median; }
  /// The median of the others of its role; nothing where there is none.
  std::optional<double> others_s(size_t index, int64_t role) const {
    const auto& all = of_roles_.at(role);
    if (all.size() < 2) return std::nullopt;
    const auto own = static_cast<size_t>(std::lower_bound(all.begin(), all.end(), times_[index].median) - all.begin());
    const size_t middle = (all.size() - 1) / 2;
    return all[middle < own ? middle : middle + 1];
  }
  bool is_slow(size_t index, double others_s) const { return times_[index].all_but_one > limit(others_s); }
  bool is_as_fast(size_t index, double others_s) const { return times_[index].median <= limit(others_s); }

 private:
  static double limit(double others_s) { return std::max(StragglerWatch::kRatio * others_s, others_s + StragglerWatch::kLeast_s); }

  std::vector<Times> times_;
  std::map<int64_t, std::vector<double>> of_roles_;  // medians, ascending
};

Straggler straggler_of(const RankSteps& rank, double own_s, double others_s, bool is_data) {
  return {.rank = rank.rank,
          .own_s = own_s,
          .others_s = others_s,
          .is_data = is_data,
          .node = rank.node,
          .description = fmt::format("rank {}{} takes {:.1f} ms {} a step, the others {:.1f} ms (medians of {} steps){}", rank.rank,
                                     rank.node.empty() ? "" : " on " + rank.node, 1e3 * own_s, is_data ? "for its batch" : "of computing",
                                     1e3 * others_s, StragglerWatch::kWindow, rank.remark.empty() ? "" : "; " + rank.remark)};
}

// Steps from `first` to the last, by the time that those of the window took.
bool has_lasted(const RankSteps& rank, int64_t first) {
  double window_s = 0;
  for (size_t i = rank.steps.size() - StragglerWatch::kWindow; i < rank.steps.size(); ++i)
    window_s += rank.steps[i].own_s + rank.steps[i].waited_s + rank.steps[i].data_s;
  const auto steps = static_cast<double>(rank.steps.back().step - first + 1);
  return steps * window_s / StragglerWatch::kWindow >= StragglerWatch::kSpan_s;
}

}  // namespace

std::vector<Straggler> StragglerWatch::look(const std::vector<RankSteps>& ranks) {
  if (ranks.size() < 2) return {};
  int64_t last = INT64_MAX;
  for (const auto& rank : ranks) {
    if (rank.steps.size() < kWindow) return {};
    last = std::min(last, rank.steps.back().step);
  }
  if (last < looked_at_) looked_at_ = 0, slow_since_.clear();  // the job has begun again
  if (last < looked_at_ + kBetween) return {};
  looked_at_ = last;
  const Comparison computing(ranks, &comm::StepTimes::own_s), data(ranks, &comm::StepTimes::data_s);
  std::vector<Straggler> found;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto& rank = ranks[i];
    const auto computing_s = computing.others_s(i, rank.role), data_s = data.others_s(i, rank.role);
    if (!computing_s || !data_s) continue;
    const bool computes_slowly = computing.is_slow(i, *computing_s), is_slow = computes_slowly || data.is_slow(i, *data_s);
    if (slow_.contains(rank.rank)) {
      if (computing.is_as_fast(i, *computing_s) && data.is_as_fast(i, *data_s)) slow_.erase(rank.rank), recovered_.push_back(rank.rank);
    } else if (!is_slow) {
      slow_since_.erase(rank.rank);
    } else if (has_lasted(rank, slow_since_.try_emplace(rank.rank, rank.steps[rank.steps.size() - kWindow].step).first->second)) {
      slow_since_.erase(rank.rank);
      found.push_back(computes_slowly ? straggler_of(rank, computing.own_s(i), *computing_s, /*is_data=*/false)
                                      : straggler_of(rank, data.own_s(i), *data_s, /*is_data=*/true));
    }
  }
  for (const auto& straggler : found) slow_.insert(straggler.rank);
  return found;
}

std::vector<int> StragglerWatch::take_recovered() { return std::exchange(recovered_, {}); }

}  // namespace ingot::resilience
