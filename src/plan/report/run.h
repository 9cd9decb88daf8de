// A run's plan as a document: its header, memory by pipeline stage, and layouts that were searched.
#pragma once

#include <vector>

#include "plan/report/document.h"
#include "plan/run/planner.h"

namespace ingot::plan {

nlohmann::ordered_json to_json(const StepMemory& memory);
nlohmann::ordered_json to_json(const Judged& judged, const Planner& planner);

/// What is planned, for how many devices of what. All documents about a run begin with it.
Document header_of(const Planner& planner, int64_t devices);

/// Of the layout that the configuration says, a line a stage; where ranks share experts also by how even their load is. Throws ConfigError
/// for a layout that is not possible. Leaves the planner's expert load at `expert_load`.
Document memory_of(Planner& planner, int64_t devices, double expert_load);

/// The layouts that `results` found, one result of each planner: the `top` fastest, and those that take more time for less memory. Of
/// several numbers of devices, less memory means that of all devices. Does not fit: nothing was found, and the text says what comes
/// nearest.
Document search_of(const std::vector<Planner>& planners, const std::vector<SearchResult>& results, int64_t top);

}  // namespace ingot::plan
