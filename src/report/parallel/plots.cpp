#include "report/parallel/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "report/plots/line_plot.h"

namespace ingot::report {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
// Sequences that differ by more than this are placed by their logarithm.
constexpr double kLogarithmicRatio = 3;

enum class Scale { linear, logarithmic, by_range };

struct Spec {
  const char* title;
  bool is_bytes;
  Scale scale;
  double (*value)(const schedule::Result&);
};

double received(const schedule::Result& r) { return static_cast<double>(schedule::received_bytes(r.ops)); }

constexpr Spec kSpecs[] = {
    {"Time", false, Scale::logarithmic, [](const schedule::Result& r) { return r.time_ms; }},
    {"Exposed communication", false, Scale::linear, [](const schedule::Result& r) { return r.exposed_ms; }},
    {"Received per rank", true, Scale::by_range, received},
    {"Peak memory per rank", true, Scale::by_range, [](const schedule::Result& r) { return static_cast<double>(r.peak_bytes); }},
};

struct Unit {
  const char* name;
  double factor;  // from the file's unit
};

Unit unit_of(const Spec& spec, double largest) {
  if (!spec.is_bytes) return {"ms", 1};
  if (largest >= 0x1p30) return {"GiB", 0x1p-30};
  if (largest >= 0x1p20) return {"MiB", 0x1p-20};
  if (largest >= 0x1p10) return {"KiB", 0x1p-10};
  return {"B", 1};
}

// What one method draws: a line, dashed where it leads to or from what does not fit, and a point for each length, hollow for those.
struct Curves {
  Curve fitting, beyond, points, holes;
};

Curves curves_of(const ParallelGroup& group, size_t method, const Spec& spec, double factor) {
  Curves out;
  std::vector<bool> is_beyond;
  for (const auto seq : group.seqs) {
    const auto* result = group.find(method, seq);
    const double y = result ? spec.value(*result) * factor : kNone;
    is_beyond.push_back(result && !result->fits);
    for (auto* curve : {&out.fitting, &out.beyond, &out.points, &out.holes}) {
      curve->x.push_back(static_cast<double>(seq));
      curve->y.push_back(y);
    }
  }
  for (size_t i = 0; i < is_beyond.size(); ++i) {
    const bool has_beyond_beside = (i > 0 && is_beyond[i - 1]) || (i + 1 < is_beyond.size() && is_beyond[i + 1]);
    if (is_beyond[i]) out.fitting.y[i] = kNone;
    else out.holes.y[i] = kNone;
    if (!is_beyond[i] && !has_beyond_beside) out.beyond.y[i] = kNone;
  }
  return out;
}

Axis y_axis_of(const std::vector<Series>& series, Scale scale) {
  if (scale != Scale::logarithmic) return y_axis(series, {.from_zero = true, .allow_logarithmic = scale == Scale::by_range});
  double low = INFINITY, high = 0;
  for (const auto& one : series) {
    for (const double y : one.curve.y) {
      if (!std::isfinite(y)) continue;
      low = std::min(low, y);
      high = std::max(high, y);
    }
  }
  return low > 0 && low <= high ? fitted(low, high, true, false, Format::plain) : y_axis(series, {.from_zero = true});
}

std::string plot_of(const ParallelGroup& group, const std::vector<std::string>& names, const Spec& spec) {
  double largest = 0;
  bool all_fit = true;
  for (const auto& [place, result] : group.results) {
    largest = std::max(largest, spec.value(*result));
    all_fit = all_fit && result->fits;
  }
  const auto unit = unit_of(spec, largest);
  Plot plot{
      .title = spec.title, .unit = unit.name, .x_label = "tokens of a sequence", .note = {}, .series = {}, .marks = {}, .x = {}, .y = {}};
  for (const auto method : group.methods) {
    auto curves = curves_of(group, method, spec, unit.factor);
    const auto& name = names[method];
    plot.series.push_back({name, method, Stroke::line, std::move(curves.fitting)});
    plot.series.push_back({name, method, Stroke::dots, std::move(curves.points)});
    if (all_fit) continue;
    plot.series.push_back({name + ", more than the device has", method, Stroke::dashed, std::move(curves.beyond)});
    plot.series.push_back({name, method, Stroke::holes, std::move(curves.holes)});
  }
  if (!all_fit) plot.note = "dashed, hollow: more than the device has";
  const auto first = static_cast<double>(group.seqs.front()), last = static_cast<double>(group.seqs.back());
  plot.x = fitted(first, last, last >= kLogarithmicRatio * first, false, Format::tokens);
  plot.y = y_axis_of(plot.series, spec.scale);
  return render(plot);
}

}  // namespace

std::string parallel_plots(const ParallelGroup& group, const std::vector<std::string>& names) {
  std::string out;
  for (const auto& spec : kSpecs) out += plot_of(group, names, spec);
  return out;
}

}  // namespace ingot::report
