// Plots of curves and points over one axis.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "report/plots/axis.h"
#include "report/plots/downsample.h"

namespace ingot::report {

enum class Stroke {
  line,    // the curve itself
  faint,   // every step, behind its mean
  mean,    // drawn like a line; it has no values of its own
  dashed,  // predictions
  dots,    // few, single measurements
  specks,  // many of them
  holes,   // inside of dots: what does not count
};

struct Series {
  std::string name;  // for tooltips
  size_t run = 0;    // chooses the colour
  Stroke stroke = Stroke::line;
  Curve curve;
};

/// A vertical line: a restart.
struct Mark {
  double x = 0;
  size_t run = 0;
  std::string text;
};

struct Plot {
  std::string title, unit;  // "Training loss", "nats per token"
  std::string x_label;      // "step"; the plots of a page with the same one zoom together
  std::string note;         // beside the title
  std::vector<Series> series;
  std::vector<Mark> marks;
  Axis x, y;
  bool tall = false;       // the main plot of a page
  bool keys = false;       // names beside the title, each with its colour
  bool scattered = false;  // tooltips are of the nearest point, not of all series at one x
};

/// The smallest and largest finite x of all series; {0, 1} when there is none.
std::pair<double, double> x_range(const std::vector<Series>& series);

struct RangeOptions {
  bool from_zero = false;
  bool allow_logarithmic = false;
  double clip = 0;  // the share of values at either end that may leave the frame if they would squash the others
  Format format = Format::plain;
};
/// The axis that shows `series` well: logarithmic when the values span more than 30 to 1, without rare extremes.
Axis y_axis(const std::vector<Series>& series, const RangeOptions& options);

/// How many finite points lie above or below the axis.
size_t clipped_points(const std::vector<Series>& series, const Axis& axis);

/// `<figure>…</figure>`.
std::string render(const Plot& plot);

}  // namespace ingot::report
