// After a failure on a wire that cannot say who is missing: every surviving rank answers in the store, and whoever does not is
// missing.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace ingot::comm {

/// Answers for `rank` under `key` and waits a moment for the others. Returns in words who did not answer, with their names from
/// `members`; "" when all did. Never throws.
std::string roll_call(c10d::Store& store, const std::string& key, int rank, const std::vector<int>& members);

}  // namespace ingot::comm
