// A file that a verb is told to read.
#pragma once

#include <filesystem>
#include <string>

#include "base/error.h"

namespace ingot::cli {

/// Throws UsageError where there is none, with a hint: a call that no launcher need try again.
inline void require_file(const std::string& path, const std::string& hint = "") {
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) throw base::UsageError("{} does not exist{}", path, hint);
  if (std::filesystem::is_directory(path, ignored)) throw base::UsageError("{} is a folder, not a file", path);
}

}  // namespace ingot::cli
