// After a failure on a wire that cannot say who is missing: every surviving rank answers in the store, and whoever does not is
// missing.
#pragma once

#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace ingot::comm {

/// Answers for `rank` under `key` and waits a moment for the others. Returns in words who did not answer, with their names from
/// `members`; "" when all did. Never throws, and takes no longer than 10 s: a store behind a network that is gone would be waited for for
/// as long as TCP tries.
std::string monitored_barrier(const c10::intrusive_ptr<c10d::Store>& store, const std::string& key, int rank,
                              const std::vector<int>& members);

}  // namespace ingot::comm
