// Counts and sizes as people write them on a command line.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::cli {

/// "4K" = 4096 (K, M, G, T are powers of 1024, as fio and nccl-tests read them), from `least` to 2^48. Throws UsageError naming the flag,
/// what to write, and where the number is out of range the nearest that is not.
int64_t count_from(const std::string& flag, const std::string& text, const std::string& what, int64_t least = 1);
std::vector<int64_t> counts_from(const std::string& flag, const std::vector<std::string>& texts, const std::string& what,
                                 int64_t least = 1);

}  // namespace ingot::cli
