#include "plan/surface.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace ingot::plan {
namespace {

constexpr size_t kTerms = Surface::kDims + 1;
// By the number of dims along which the sizes differ: enough to surround a point of a grid.
constexpr std::array<size_t, Surface::kDims + 1> kNeighbours = {1, 3, 6, 10};
// Keeps the plane flat along directions in which the neighbours do not differ.
constexpr double kRidge = 1e-3;

using Matrix = std::array<std::array<double, kTerms + 1>, kTerms>;

// Gaussian elimination with pivoting of a symmetric positive definite system; returns the first unknown.
double solve_first(Matrix a) {
  for (size_t column = 0; column < kTerms; ++column) {
    size_t pivot = column;
    for (size_t row = column + 1; row < kTerms; ++row)
      if (std::abs(a[row][column]) > std::abs(a[pivot][column])) pivot = row;
    std::swap(a[pivot], a[column]);
    for (size_t row = 0; row < kTerms; ++row) {
      if (row == column) continue;
      const double factor = a[row][column] / a[column][column];
      for (size_t i = column; i <= kTerms; ++i) a[row][i] -= factor * a[column][i];
    }
  }
  return a[0][kTerms] / a[0][0];
}

}  // namespace

void Surface::add(const Sizes& sizes, double value) {
  Point point{};
  for (size_t d = 0; d < kDims; ++d) {
    point.log_sizes[d] = std::log2(sizes[d]);
    lowest_[d] = points_.empty() ? point.log_sizes[d] : std::min(lowest_[d], point.log_sizes[d]);
    highest_[d] = points_.empty() ? point.log_sizes[d] : std::max(highest_[d], point.log_sizes[d]);
  }
  point.log_value = std::log2(value);
  points_.push_back(point);
}

double Surface::at(const Sizes& sizes) const {
  assert(!points_.empty());
  Sizes x{};
  for (size_t d = 0; d < kDims; ++d) x[d] = std::clamp(std::log2(sizes[d]), lowest_[d], highest_[d]);
  std::vector<std::pair<double, const Point*>> near;  // squared distance
  for (const auto& point : points_) {
    double distance = 0;
    for (size_t d = 0; d < kDims; ++d) distance += (point.log_sizes[d] - x[d]) * (point.log_sizes[d] - x[d]);
    if (distance < 1e-12) return std::exp2(point.log_value);
    near.emplace_back(distance, &point);
  }
  size_t varying = 0;
  for (size_t d = 0; d < kDims; ++d) varying += lowest_[d] < highest_[d] ? 1 : 0;
  const size_t count = std::min(kNeighbours[varying], near.size());
  std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(count), near.end(),
                    [](const auto& a, const auto& b) { return a.first < b.first; });
  Matrix normal{};
  double lowest = near[0].second->log_value, highest = lowest, weights = 0;
  for (size_t i = 0; i < count; ++i) {
    const auto& point = *near[i].second;
    const double weight = 1 / near[i].first;
    std::array<double, kTerms> terms{1};
    for (size_t d = 0; d < kDims; ++d) terms[d + 1] = point.log_sizes[d] - x[d];
    for (size_t r = 0; r < kTerms; ++r) {
      for (size_t c = 0; c < kTerms; ++c) normal[r][c] += weight * terms[r] * terms[c];
      normal[r][kTerms] += weight * terms[r] * point.log_value;
    }
    weights += weight;
    lowest = std::min(lowest, point.log_value);
    highest = std::max(highest, point.log_value);
  }
  for (size_t d = 1; d < kTerms; ++d) normal[d][d] += kRidge * weights;
  return std::exp2(std::clamp(solve_first(normal), lowest, highest));
}

}  // namespace ingot::plan
