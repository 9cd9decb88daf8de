// Counts and sizes as people write them on a command line, such as 4K, 64M, 8B or 1e21.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::base {

/// "4K" = 4096 (K, M, G, T are powers of 1024, as fio and nccl-tests read them), from `least` to 2^48. Throws UsageError naming the flag,
/// what to write, and where the number is out of range the nearest that is not.
int64_t count_from(const std::string& flag, const std::string& text, const std::string& what, int64_t least = 1);
std::vector<int64_t> counts_from(const std::string& flag, const std::vector<std::string>& texts, const std::string& what,
                                 int64_t least = 1);

/// Of what models are made of: "760M", "8B", "2T" (powers of 1000), "1e21" -> 1 to `most`; "" -> 0. Throws UsageError naming the flag.
double quantity_from(const std::string& flag, const std::string& text, double most);

}  // namespace ingot::base
