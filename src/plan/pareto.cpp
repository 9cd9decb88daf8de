#include "plan/pareto.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace ingot::plan {

bool dominates(const Objectives& a, const Objectives& b) {
  bool is_better = false;
  for (size_t k = 0; k < a.size(); ++k) {
    if (a[k] < b[k]) return false;
    is_better = is_better || a[k] > b[k];
  }
  return is_better;
}

std::vector<bool> pareto_front(const std::vector<Objectives>& points) {
  std::vector<bool> front;
  for (const auto& point : points)
    front.push_back(std::none_of(points.begin(), points.end(), [&](const auto& other) { return dominates(other, point); }));
  return front;
}

Dominator strongest_dominator(const std::vector<Objectives>& points, size_t i) {
  Dominator best;
  double least_gain = 0, product = 0;
  for (size_t j = 0; j < points.size(); ++j) {
    if (!dominates(points[j], points[i])) continue;
    std::vector<double> gains;
    for (size_t k = 0; k < points[j].size(); ++k) gains.push_back(points[j][k] / points[i][k]);
    const double least = *std::min_element(gains.begin(), gains.end());
    const double all = std::accumulate(gains.begin(), gains.end(), 1.0, std::multiplies<>());
    if (best.exists && (least < least_gain || (least == least_gain && all <= product))) continue;
    best = {j, std::move(gains), true};
    least_gain = least;
    product = all;
  }
  return best;
}

}  // namespace ingot::plan
