// `ingot plan simulate`: a step of all ranks as events, beside the formulas' step, and what failures leave of a run's time.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/options.h"
#include "cli/planner.h"

namespace ingot::cli {

/// Throws UsageError for flags that make no sense.
plan::Topology topology_of(const PlanOptions& options);

Document simulate(const PlanOptions& options, Planner& planner, int64_t devices);

}  // namespace ingot::cli
