#include "report/plots/axis.h"

#include <algorithm>
#include <cmath>

namespace ingot::report {

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
