#include "resilience/straggler.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace ingot::resilience {
namespace {

using Part = double comm::StepTimes::*;

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Of the last steps, in ascending order.
std::vector<double> sorted(const RankSteps& rank, Part part) {
  std::vector<double> values;
  for (size_t i = rank.steps.size() - StragglerWatch::kWindow; i < rank.steps.size(); ++i) values.push_back(rank.steps[i].*part);
  std::sort(values.begin(), values.end());
  return values;
}

struct Comparison {
  Straggler straggler;
  bool is_slow = false, is_as_fast = true;  // neither: one step and another
};

Comparison compare(const std::vector<RankSteps>& ranks, size_t index, Part part, bool is_data) {
  const auto& own = ranks[index];
  std::vector<double> others;
  for (size_t i = 0; i < ranks.size(); ++i)
    if (i != index && ranks[i].role == own.role) others.push_back(median(sorted(ranks[i], part)));
  if (others.empty()) return {};
  const auto steps = sorted(own, part);
  const double others_s = median(std::move(others)), own_s = median(steps);
  const double slow_s = std::max(StragglerWatch::kRatio * others_s, others_s + StragglerWatch::kLeast_s);
  return {{.rank = own.rank,
           .own_s = own_s,
           .others_s = others_s,
           .is_data = is_data,
           .description = fmt::format("rank {} takes {:.1f} ms {} a step, the others {:.1f} ms (medians of {} steps)", own.rank,
                                      1e3 * own_s, is_data ? "for its batch" : "of computing", 1e3 * others_s, StragglerWatch::kWindow)},
          steps[1] > slow_s,
          own_s <= slow_s};
}

}  // namespace

std::vector<Straggler> StragglerWatch::look(const std::vector<RankSteps>& ranks) {
  if (ranks.size() < 2) return {};
  int64_t last = INT64_MAX;
  for (const auto& rank : ranks) {
    if (rank.steps.size() < kWindow) return {};
    last = std::min(last, rank.steps.back().step);
  }
  if (last < looked_at_) looked_at_ = 0;  // the job has begun again
  if (last < looked_at_ + kBetween) return {};
  looked_at_ = last;
  std::vector<Straggler> found;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const auto computing = compare(ranks, i, &comm::StepTimes::own_s, false), data = compare(ranks, i, &comm::StepTimes::data_s, true);
    const int rank = ranks[i].rank;
    if (slow_.contains(rank)) {
      if (computing.is_as_fast && data.is_as_fast) slow_.erase(rank), recovered_.push_back(rank);
    } else if (computing.is_slow || data.is_slow) {
      slow_.insert(rank);
      found.push_back(computing.is_slow ? computing.straggler : data.straggler);
    }
  }
  return found;
}

std::vector<int> StragglerWatch::take_recovered() { return std::exchange(recovered_, {}); }

}  // namespace ingot::resilience
