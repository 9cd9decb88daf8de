// The part of the page about checkpoints: what saves and loads cost, phase by phase, and which ranks were slow.
#pragma once

#include <string>
#include <vector>

#include "report/run/run_data.h"

namespace ingot::report {

/// Tables, bars and heat maps of the runs that have checkpoints.jsonl; "" when none has.
std::string checkpoint_section(const std::vector<RunData>& runs);

}  // namespace ingot::report
