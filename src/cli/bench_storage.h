// Storage for the other benchmarks.
#pragma once

#include <string>
#include <vector>

#include "plan/profile.h"

namespace ingot::cli {

/// A few seconds of the storage benchmark in `folder`, for a machine profile, ten at most. Where the folder has no room or cannot be
/// written to, that is logged and nothing comes back.
std::vector<plan::StorageRate> storage_rates(const std::string& folder);

}  // namespace ingot::cli
