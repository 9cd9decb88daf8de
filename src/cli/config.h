// A configuration as the verbs that take one read it.
#pragma once

#include <string>
#include <vector>

#include "train/config.h"

namespace ingot::cli {

/// The file with `set` (key=value) over it. Throws ConfigError, FileError or UsageError.
train::RunConfig read_config(const std::string& path, const std::vector<std::string>& set);

}  // namespace ingot::cli
