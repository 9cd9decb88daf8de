#include "plan/shape_multiples.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace ingot::plan {
namespace {

constexpr double kNear = 1.15;  // largest over smallest size of neighbours

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

size_t classes_of(const std::vector<GemmRate>& rates) {
  std::map<int64_t, int> classes;
  for (const auto& e : rates) ++classes[divisibility(e.n)];
  return classes.size();
}

}  // namespace

int64_t divisibility(int64_t n) {
  for (const int64_t multiple : {128, 64, 32, 16, 8})
    if (n % multiple == 0) return multiple;
  return 1;
}

double ShapeMultiples::share_of(int64_t n) const {
  double share = classes.front().share;
  for (const auto& c : classes)
    if (c.multiple <= divisibility(n)) share = c.share;
  return share;
}

std::optional<ShapeMultiples> shape_multiples(const std::vector<GemmRate>& neighbours, double wanted) {
  std::map<int64_t, std::vector<double>> rates;
  for (const auto& e : neighbours) rates[divisibility(e.n)].push_back(e.flops_per_s);
  if (rates.size() < 2) return std::nullopt;
  ShapeMultiples result;
  result.like = neighbours.front();
  double best = 0;
  for (const auto& [multiple, of_class] : rates) {
    result.classes.push_back({multiple, static_cast<int64_t>(of_class.size()), median(of_class), 0});
    best = std::max(best, result.classes.back().flops_per_s);
  }
  for (const auto& e : neighbours) {
    result.like.n = std::min(result.like.n, e.n);
    result.largest_n = std::max(result.largest_n, e.n);
  }
  for (auto& c : result.classes) c.share = c.flops_per_s / best;
  // A multiple promises the slowest class that it allows; a larger one is worth it only if that promises more.
  std::vector<double> promised(result.classes.size());
  double least = 1;
  for (size_t i = result.classes.size(); i-- > 0;) promised[i] = least = std::min(least, result.classes[i].share);
  const double most = *std::max_element(promised.begin(), promised.end());
  size_t smallest = 0;
  while (promised[smallest] < wanted * most) ++smallest;
  result.multiple = result.classes[smallest].multiple;
  return result;
}

std::vector<GemmRate> neighbouring_shapes(const MachineProfile& profile, const std::string& dtype) {
  std::map<std::tuple<int64_t, int64_t>, std::vector<GemmRate>> alike;
  for (const auto& e : profile.gemm)
    if (e.dtype == dtype && e.kind == "plain" && e.pass == "forward") alike[{e.m, e.k}].push_back(e);
  std::vector<GemmRate> most;
  for (auto& [key, rates] : alike) {
    std::sort(rates.begin(), rates.end(), [](const auto& a, const auto& b) { return a.n < b.n; });
    for (auto first = rates.begin(); first != rates.end(); ++first) {
      auto last = first;
      while (last != rates.end() && static_cast<double>(last->n) <= kNear * static_cast<double>(first->n)) ++last;
      const std::vector<GemmRate> near(first, last);
      if (classes_of(near) >= 2 && near.size() > most.size()) most = near;
    }
  }
  return most;
}

}  // namespace ingot::plan
