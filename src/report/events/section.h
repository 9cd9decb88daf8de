// The part of the page about what happened: a timeline of starts, failures, hangs and restarts, and what they cost.
#pragma once

#include <string>
#include <vector>

#include "report/run/run_data.h"

namespace ingot::report {

/// Of the runs that have had trouble; "" when none has.
std::string events_section(const std::vector<RunData>& runs);

}  // namespace ingot::report
