#include "plan/within_steps.h"

#include <algorithm>

namespace ingot::plan {
namespace {

constexpr double kLeast = 0.5, kMost = 4;  // what lies beyond is a disturbance, or work too small to be timed
constexpr double kMostBesides = 1;         // of between() and uneven()

}  // namespace

WithinStepsFactors::WithinStepsFactors(const MachineProfile& profile, const std::string& dtype) {
  struct Sums {
    double measured_s = 0, predicted_s = 0;
  };
  std::map<WorkKind, Sums> kinds;
  for (const auto& e : profile.within_steps) {
    const auto kind = work_kind_named(e.kind);
    if (e.dtype != dtype || !kind) continue;
    auto& sums = kinds[*kind];
    sums.measured_s += e.measured_s, sums.predicted_s += e.predicted_s;
  }
  double own_s = 0, between_s = 0, uneven_s = 0;
  for (const auto& [kind, sums] : kinds) {
    if (kind == WorkKind::communication) {
      uneven_s = std::max(0.0, sums.measured_s - sums.predicted_s);
    } else if (sums.predicted_s > 0) {
      own_s += sums.measured_s;
      if (sums.measured_s > 0) factors_[kind] = std::clamp(sums.measured_s / sums.predicted_s, kLeast, kMost);
    } else {
      between_s += sums.measured_s;
    }
  }
  if (own_s <= 0) return;
  between_ = std::min(between_s / own_s, kMostBesides);
  uneven_ = std::min(uneven_s / (own_s + between_s), kMostBesides);
}

double WithinStepsFactors::of(WorkKind kind) const {
  const auto found = factors_.find(kind);
  return found == factors_.end() ? 1 : found->second;
}

}  // namespace ingot::plan
