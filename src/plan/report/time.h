// A step by kind of work and of communication, and the whole run around it, as a document.
#pragma once

#include "plan/report/document.h"
#include "plan/run/planner.h"

namespace ingot::plan {

struct Failures {
  double mtbf_h = 0;     // hours between those of one device; 0: none fails
  double restart_s = 0;  // from a failure until the run computes again
};

/// Of the layout that the configuration says. `record`: what earlier runs of this machine measured, for plans of this machine. Throws
/// ConfigError for a layout that is not possible.
Document time_of(Planner& planner, int64_t devices, const Failures& failures, const std::vector<Outcome>& record);

}  // namespace ingot::plan
