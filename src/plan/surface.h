// A positive quantity measured at scattered sizes, estimated between them. Rates vary smoothly over the logarithms of sizes,
// so that is where it interpolates: a plane through the nearest measurements, weighted by 1 / distance^2. Exact where
// measured; outside of the measured range the nearest rate holds. Filled by one thread, then read by any.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

namespace ingot::plan {

class Surface {
 public:
  static constexpr size_t kDims = 3;
  using Sizes = std::array<double, kDims>;  // positive; unused ones stay 1

  void add(const Sizes& sizes, double value);
  bool empty() const { return points_.empty(); }
  /// Must not be empty.
  double at(const Sizes& sizes) const;

 private:
  struct Point {
    Sizes log_sizes;
    double log_value;
  };
  std::vector<Point> points_;
  Sizes lowest_{}, highest_{};
};

}  // namespace ingot::plan
