// From data to the unit square and to readable tick marks.
#pragma once

#include <string>
#include <vector>

namespace ingot::report {

/// How the numbers of an axis are written.
enum class Format {
  plain,   // 3.2, 1,200, 3e-4
  count,   // 12 k, 1.5 M
  bytes,   // 4 KiB
  tokens,  // 8K
};

struct Axis {
  double low = 0, high = 1;
  bool logarithmic = false;  // needs low > 0
  Format format = Format::plain;

  /// 0 at `low`, 1 at `high`; outside that range for values outside.
  double place(double value) const;
};

struct Tick {
  double value = 0;
  std::string label;
};

/// At most about `wanted` ticks inside the axis, at 1, 2 or 5 times a power of ten; on a logarithmic axis at powers of ten,
/// with 2 and 5 between them when there are few.
std::vector<Tick> ticks(const Axis& axis, int wanted);

/// Widens [low, high] so that a constant has room and nothing touches the frame; `from_zero` keeps 0 at the bottom.
Axis fitted(double low, double high, bool logarithmic, bool from_zero, Format format);

}  // namespace ingot::report
