#include "report/plots/downsample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ingot::report {
namespace {

// Calls use(begin, end) for the rows of each stretch that has any.
template <class Use>
void for_each_bucket(const Curve& curve, double low, double high, size_t buckets, const Use& use) {
  const double width = (high - low) / static_cast<double>(buckets);
  auto begin = static_cast<size_t>(std::lower_bound(curve.x.begin(), curve.x.end(), low) - curve.x.begin());
  const auto stop = static_cast<size_t>(std::upper_bound(curve.x.begin(), curve.x.end(), high) - curve.x.begin());
  for (size_t bucket = 1; bucket <= buckets && begin < stop; ++bucket) {
    const double border = bucket == buckets ? high : low + width * static_cast<double>(bucket);
    const auto end = bucket == buckets ? stop
                                       : static_cast<size_t>(std::lower_bound(curve.x.begin() + static_cast<std::ptrdiff_t>(begin),
                                                                              curve.x.begin() + static_cast<std::ptrdiff_t>(stop), border) -
                                                             curve.x.begin());
    if (end > begin) use(begin, end);
    begin = std::max(begin, end);
  }
}

}  // namespace

Curve min_max(const Curve& curve, double low, double high, size_t buckets) {
  const auto first = std::lower_bound(curve.x.begin(), curve.x.end(), low), last = std::upper_bound(curve.x.begin(), curve.x.end(), high);
  if (last - first <= static_cast<std::ptrdiff_t>(2 * buckets)) {
    const auto from = first - curve.x.begin(), to = last - curve.x.begin();
    return {{first, last}, {curve.y.begin() + from, curve.y.begin() + to}};
  }
  Curve out;
  for_each_bucket(curve, low, high, buckets, [&](size_t begin, size_t end) {
    size_t lowest = end, highest = end;
    for (size_t row = begin; row < end; ++row) {
      if (std::isnan(curve.y[row])) continue;
      if (lowest == end || curve.y[row] < curve.y[lowest]) lowest = row;
      if (highest == end || curve.y[row] > curve.y[highest]) highest = row;
    }
    const size_t early = std::min(lowest, highest), late = std::max(lowest, highest);
    const size_t gap = begin;  // a stretch of nothing but NaN stays a gap
    out.x.push_back(curve.x[early == end ? gap : early]);
    out.y.push_back(curve.y[early == end ? gap : early]);
    if (late == end || late == early) return;
    out.x.push_back(curve.x[late]);
    out.y.push_back(curve.y[late]);
  });
  return out;
}

namespace {

// One point per stretch, from its finite values; `level` may reorder them.
template <class Level>
Curve condensed(const Curve& curve, double low, double high, size_t buckets, const Level& level) {
  Curve out;
  std::vector<double> finite;
  for_each_bucket(curve, low, high, buckets, [&](size_t begin, size_t end) {
    finite.clear();
    double sum_x = 0;
    for (size_t row = begin; row < end; ++row) {
      if (std::isnan(curve.y[row])) continue;
      sum_x += curve.x[row];
      finite.push_back(curve.y[row]);
    }
    if (finite.empty()) return;
    out.x.push_back(sum_x / static_cast<double>(finite.size()));
    out.y.push_back(level(finite));
  });
  return out;
}

}  // namespace

Curve means(const Curve& curve, double low, double high, size_t buckets) {
  return condensed(curve, low, high, buckets, [](const std::vector<double>& values) {
    return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  });
}

Curve medians(const Curve& curve, double low, double high, size_t buckets) {
  return condensed(curve, low, high, buckets, [](std::vector<double>& values) {
    const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), middle, values.end());
    return *middle;
  });
}

}  // namespace ingot::report
