// What two machines, or one at two times, do differently: the same measurements of both, as ratios of rates.
#pragma once

#include <string>
#include <vector>

#include "report/profile/reader.h"

namespace ingot::report {

/// One measurement that both have. Rates: the more the better, in `unit`s.
struct Difference {
  std::string section, what;  // "GEMMs bf16", "forward 64 x 128 x 256"
  double first = 0, second = 0;
  std::string unit;  // FLOP/s, B/s, calls/s

  double ratio() const { return second / first; }
};

/// Largest loss of the second machine first. What one of them has alone is left out.
std::vector<Difference> differences(const Measured& first, const Measured& second);

struct SectionDifference {
  std::string section;
  size_t count = 0;
  double median_ratio = 1;
  Difference worst, best;
};
/// In the order of the page's sections. `all` from differences().
std::vector<SectionDifference> by_section(const std::vector<Difference>& all);

/// Sentences about what makes the two hard to compare: another device, number of threads, version, list of dtypes, a quick profile or a
/// busy machine.
std::vector<std::string> comparison_warnings(const Measured& first, const Measured& second);

}  // namespace ingot::report
