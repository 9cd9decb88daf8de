#include "report/plots/axis.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "report/page/html.h"

namespace ingot::report {
namespace {

std::string exponent_label(double value) {
  const auto text = fmt::format("{:.3g}", value);
  if (value == 0 || (std::abs(value) >= 1e-3 && std::abs(value) < 1e6)) return text;
  const auto power = static_cast<int>(std::floor(std::log10(std::abs(value)) + 1e-9));
  return fmt::format("{:.3g}e{}", value / std::pow(10, power), power);
}

// `distance` to the next tick decides on the decimals, `largest` on the unit, so that one axis has one unit.
std::string label(double value, double distance, double largest, Format format) {
  if (value == 0) return "0";
  static constexpr const char* kUnits[] = {"", " k", " M", " G", " T", " P"};
  size_t unit = 0;
  double factor = 1;
  if (format == Format::count && std::abs(largest) >= 1e4) {
    while (unit + 1 < std::size(kUnits) && std::abs(largest) >= factor * 1000) {
      ++unit;
      factor *= 1000;
    }
  }
  if (std::abs(value) >= 1e15 * factor) return fmt::format("{:.2e}", value);
  const int decimals = std::clamp(static_cast<int>(std::ceil(-std::log10(distance / factor) - 1e-9)), 0, 9);
  if (decimals == 0) return grouped(std::llround(value / factor)) + kUnits[unit];
  return fmt::format("{:.{}f}{}", value / factor, decimals, kUnits[unit]);
}

std::vector<Tick> logarithmic_ticks(const Axis& axis, int wanted) {
  std::vector<Tick> out;
  const int first = static_cast<int>(std::floor(std::log10(axis.low))), last = static_cast<int>(std::ceil(std::log10(axis.high)));
  const int stride = std::max(1, (last - first + wanted - 1) / wanted);
  const bool between = last - first <= 3;
  for (int power = first; power <= last; power += stride) {
    for (const int digit : {1, 2, 5}) {
      const double value = digit * std::pow(10.0, power);
      if ((digit > 1 && !between) || value < axis.low * (1 - 1e-9) || value > axis.high * (1 + 1e-9)) continue;
      const bool extreme = value < 1e-3 || value >= 1e6;
      out.push_back({value, extreme && axis.format == Format::plain ? exponent_label(value) : label(value, value, value, axis.format)});
    }
  }
  return out;
}

}  // namespace

double Axis::place(double value) const {
  if (logarithmic) return std::log(std::max(value, 1e-300) / low) / std::log(high / low);
  return (value - low) / (high - low);
}

std::vector<Tick> ticks(const Axis& axis, int wanted) {
  if (axis.logarithmic) {
    auto out = logarithmic_ticks(axis, wanted);
    if (out.size() >= 2) return out;
  }
  const double raw = (axis.high - axis.low) / wanted;
  const double power = std::pow(10.0, std::floor(std::log10(raw)));
  const double digit = raw / power;
  const double distance = power * (digit <= 1 ? 1 : digit <= 2 ? 2 : digit <= 5 ? 5 : 10);
  std::vector<Tick> out;
  for (double index = std::ceil(axis.low / distance - 1e-9); index * distance <= axis.high + distance * 1e-9 && out.size() < 50; ++index) {
    const double value = index * distance;
    out.push_back({value, label(value, distance, axis.high, axis.format)});
  }
  return out;
}

Axis fitted(double low, double high, bool logarithmic, bool from_zero, Format format) {
  if (logarithmic && low > 0) {
    const double margin = std::max(std::pow(high / low, 0.04), 1.05);
    return {low / margin, high * margin, true, format};
  }
  if (from_zero && low >= 0) return {0, high > 0 ? high * 1.06 : 1, false, format};
  double margin = (high - low) * 0.05;
  if (margin <= std::abs(high) * 1e-9) margin = high == 0 ? 1 : std::abs(high) * 0.05;
  return {low >= 0 ? std::max(low - margin, 0.0) : low - margin, high + margin, false, format};
}

}  // namespace ingot::report
