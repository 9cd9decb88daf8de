// The page's numbers as one JSON document.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <vector>

#include "report/profile/reader.h"

namespace ingot::report {

/// {machines: [{name, best_flops_per_s: {dtype: …}, memory_bytes_per_s, cache_steps, attention, collectives}]}, and of two machines
/// {warnings, sections, differences}, largest loss first. Rates in FLOP/s and bytes/s; what is not known is null.
nlohmann::ordered_json profile_summary(const std::vector<Measured>& machines);

}  // namespace ingot::report
