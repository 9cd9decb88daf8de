#include "eval/estimate.h"

#include <numbers>

namespace ingot::eval {

Estimate estimate(std::span<const Share> items, Scale scale) {
  double value = 0, weight = 0;
  for (const auto& item : items) value += item.value, weight += item.weight;
  const double r = value / weight, count = static_cast<double>(items.size());
  double squares = 0;
  for (const auto& item : items) squares += (item.value - r * item.weight) * (item.value - r * item.weight);
  std::optional<double> error;
  if (items.size() > 1) error = std::sqrt(count / (count - 1) * squares) / std::abs(weight);
  const auto scaled = [&](double said, double slope) { return Estimate{said, error ? std::optional(*error * slope) : std::nullopt}; };
  switch (scale) {
    case Scale::perplexity: return scaled(std::exp(-r), std::exp(-r));
    case Scale::bits: return scaled(-r / std::numbers::ln2, 1 / std::numbers::ln2);
    case Scale::negative: return scaled(-r, 1);
    case Scale::plain: break;
  }
  return scaled(r, 1);
}

double pass_at(int64_t n, int64_t c, int64_t k) {
  if (n - c < k) return 1;
  double none = 1;  // C(n - c, k) / C(n, k)
  for (int64_t i = n - c + 1; i <= n; ++i) none *= 1 - static_cast<double>(k) / static_cast<double>(i);
  return 1 - none;
}

Measure measure_named(const std::string& name) {
  if (name.ends_with("perplexity")) return {name, Scale::perplexity, false};
  if (name == "bits_per_byte") return {name, Scale::bits, false};
  if (name == "loss") return {name, Scale::negative, false};
  return {name};
}

}  // namespace ingot::eval
