// Stacked bars side by side, each with its numbers as a tooltip.
#pragma once

#include <string>
#include <vector>

#include "report/plots/axis.h"
#include "report/plots/heat_map.h"

namespace ingot::report {

/// One thing that bars are made of.
struct BarPart {
  std::string name;     // for the key
  std::string style{};  // class of the style sheet: "c0" … "c7", "other"
};

struct Bar {
  Span x;                                 // what it stands for
  std::vector<double> heights;            // of the parts, from the bottom; NaN and less than 0 are drawn as 0
  double beside_from = 0, beside_to = 0;  // what went on at the same time, in a thin lane of its own
  double tick = 0;                        // a line across, where it is above 0
  bool failed = false;
  std::string mark{};  // stands before the bar, as "resumed from step 5"
  std::string text{};  // the tooltip
};

struct BarPlot {
  std::string title, unit, x_label, note;
  std::vector<BarPart> parts;
  BarPart beside;         // no name: there is no such lane
  std::string tick_name;  // no name: there are no ticks
  std::vector<Bar> bars;
  Axis y;
  size_t run = 0;
  bool wide = false;
};

/// `<figure>…</figure>`; empty when there are no bars.
std::string render(const BarPlot& plot);

}  // namespace ingot::report
