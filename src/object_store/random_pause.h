// How long to wait before a request is tried again.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

namespace ingot::object_store {

/// Seconds between 0 and `first_s` x 2^(failures - 1), at most `longest_s`. Full jitter: many clients that failed together do not come back
/// together. Any thread.
inline double random_pause_s(int failures, double first_s, double longest_s) {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  const double longest = std::min(longest_s, std::ldexp(first_s, std::min(failures - 1, 40)));
  return std::uniform_real_distribution<double>(0, std::max(longest, 1e-6))(generator);
}

}  // namespace ingot::object_store
