// Means over the items of a task, and how sure they are.
#pragma once

#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ingot::eval {

/// What an item adds to a metric: the metric goes by the sum of values over the sum of weights.
struct Share {
  double value = 0, weight = 1;
};

/// What is said of that quotient r: itself, exp(-r), -r / ln 2, -r.
enum class Scale { plain, perplexity, bits, negative };

struct Estimate {
  double value = 0;
  std::optional<double> error;  // standard error; nothing of one item
};

/// The standard error is that of a quotient of sums, linearised (Cochran, "Sampling Techniques", section 6.4), carried on by the scale's
/// derivative. With weights of 1 it is the sample's deviation over the root of its size, as lm-evaluation-harness has it.
Estimate estimate(std::span<const Share> items, Scale scale);

/// Chance that at least one of k programs is right, of n of which c are (Chen et al., arXiv 2107.03374, eq. 1).
double pass_at(int64_t n, int64_t c, int64_t k);

struct Measure {
  std::string name;
  Scale scale = Scale::plain;
  bool higher_is_better = true;
};
Measure measure_named(const std::string& name);

}  // namespace ingot::eval
