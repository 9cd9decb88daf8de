// What work takes more within a training step than where it was measured by itself: operands that come from memory, threads that meet, and
// what lies between operations. From the steps of small models that `ingot bench all` trains (bench/step_probe.h), kind by kind, so that
// what a run's own kinds of work make of it follows; nothing here is of the run that is predicted.
#pragma once

#include <map>
#include <string>

#include "plan/profile.h"
#include "plan/work_kind.h"

namespace ingot::plan {

class WithinStepsFactors {
 public:
  /// Of no profile: nothing takes more.
  WithinStepsFactors() = default;
  WithinStepsFactors(const MachineProfile& profile, const std::string& dtype);

  /// Time within steps over time by itself, from 0.5 to 4; 1 where it was not measured.
  double of(WorkKind kind) const;
  /// Of all that has a kind, how much more passes between operations and in waiting for data.
  double between() const { return between_; }
  /// And in waiting for ranks that are slower for a moment, beyond the time of messages.
  double uneven() const { return uneven_; }

 private:
  std::map<WorkKind, double> factors_;
  double between_ = 0, uneven_ = 0;
};

}  // namespace ingot::plan
