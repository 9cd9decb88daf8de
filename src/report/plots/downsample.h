// Long runs on a small page: a million steps become a few hundred points that look the same.
#pragma once

#include <cstddef>
#include <vector>

namespace ingot::report {

/// Values over ascending x. A NaN in y is a gap.
struct Curve {
  std::vector<double> x, y;
};

/// The curve unchanged when it has at most 2 * buckets points; else the lowest and the highest point of each of `buckets`
/// equal stretches of [low, high], in the order in which they come. Outside that range nothing is kept.
Curve min_max(const Curve& curve, double low, double high, size_t buckets);

/// One point per stretch: the mean of x and of y over its finite values. Stretches without any are left out.
Curve means(const Curve& curve, double low, double high, size_t buckets);

/// The same with the median of y.
Curve medians(const Curve& curve, double low, double high, size_t buckets);

}  // namespace ingot::report
