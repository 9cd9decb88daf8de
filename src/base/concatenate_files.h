// Large files behind one another in a new one, copied by the kernel where the file system can.
#pragma once

#include <vector>

#include "base/files.h"

namespace ingot::base {

/// Makes `to`, or writes over it, and makes it durable; in constant memory. Throws FileError; then `to` is incomplete and the caller's to
/// remove.
void concatenate_files(const std::vector<fs::path>& from, const fs::path& to);

}  // namespace ingot::base
