// For a run that does not fit into its device's memory.
#pragma once

#include <string>

#include "plan/run/forecast.h"
#include "train/config.h"

namespace ingot::plan {

/// A table of settings of the same layout that need less memory than the configuration does, in the phase that needs most: those that fit,
/// the fastest first, else the one that needs least, with what shares out states over more ranks.
std::string settings_that_need_less(const train::RunConfig& config, PhasePlanner& planner);

/// The same behind what the planner's rank holds at the peak of a step of that phase, by name. For a run that found no memory left.
std::string explain_out_of_memory(const train::RunConfig& config, PhasePlanner& planner);

}  // namespace ingot::plan
