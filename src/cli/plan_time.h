// `ingot plan time`: a step by kind of work and of message, and the whole run around it.
#pragma once

#include "cli/options.h"
#include "cli/planner.h"

namespace ingot::cli {

nlohmann::ordered_json to_json(const plan::StepMemory& memory);
nlohmann::ordered_json to_json(const plan::Judged& judged, const Planner& planner);

Document time_of(const PlanOptions& options, Planner& planner, int64_t devices);

}  // namespace ingot::cli
