// GEMMs of neighbouring sizes: what a machine makes of their divisibility, which no grid over powers of two shows.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "bench/operations.h"

namespace ingot::bench {

struct ShapeProbe {
  std::string dtype = "fp32", device = "cpu";
  int64_t m = 512, k = 1024;  // rows, inputs
  std::vector<int64_t> n = {1984, 1999, 2000, 2001, 2008, 2016, 2024, 2032, 2040, 2047,
                            2048, 2056, 2064, 2072, 2080, 2096, 2099, 2112, 2144, 2176};
  int rounds = 9;
};

/// Forward GEMMs over all sizes in turn, round after round, so that a disturbance meets all sizes alike; the median of each. `on_round`
/// hears how many are done, and says whether to go on: when it does not, what was measured stays (nothing before the first round).
std::vector<plan::GemmRate> measure_neighbours(const ShapeProbe& probe, const std::function<bool(int done)>& on_round = {});

}  // namespace ingot::bench
