// Heat maps: one hue from pale to full.
#pragma once

#include <string>
#include <vector>

#include "report/plots/axis.h"

namespace ingot::report {

/// What a row or a column stands for: one number, or several as "8–15".
struct Span {
  double first = 0, last = 0;
};
std::string text_of(const Span& span);

struct HeatMap {
  std::string title, note;
  std::string x_label, y_label;           // of the two axes
  std::vector<std::vector<double>> rows;  // [rows][columns]; NaN is drawn as background. All rows have equal length
  double low = 0, high = 1;               // of the colour scale; values outside take the colour at its end
  std::string unit;                       // "× even"
  double x_low = 0, x_high = 0;           // what the columns span; when equal, columns are numbered from 0
  Format x_format = Format::plain;
  size_t run = 0;
  std::vector<Span> row_spans{}, column_spans{};  // as many as rows and columns; without them both are numbered from 0
  bool low_is_strong = false;                     // low values have the full colour, high ones the pale one
  bool wide = false;                              // as wide as the page
};

/// `<figure>…</figure>`; empty when there are no cells.
std::string render(const HeatMap& map);

}  // namespace ingot::report
