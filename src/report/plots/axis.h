// The range that a plot begins with, and goes back to after zooming. Ticks are drawn by plots.js.
#pragma once

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
};

/// Widens [low, high] so that a constant has room and nothing touches the frame; `from_zero` keeps 0 at the bottom.
Axis fitted(double low, double high, bool logarithmic, bool from_zero, Format format);

}  // namespace ingot::report
