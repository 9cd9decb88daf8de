#include "report/plots/svg_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/text.h"
#include "report/page/html.h"
#include "report/plots/palette.h"
#include "report/run/summary.h"

namespace ingot::report {
namespace {

constexpr double kUnits = 10000;  // of the nested drawing, in both directions
constexpr double kLogarithmicRatio = 30;

// Far outside of the frame is as good as infinitely far, and keeps numbers short.
int units(double place) { return static_cast<int>(std::lround(std::clamp(place, -1.0, 2.0) * kUnits)); }

// Gaps part the path; a lonely point becomes a line of no length, which round caps draw as a dot. Points between two of the
// same height are left out.
std::string path_of(const Curve& curve, const Plot& plot, bool are_lonely) {
  struct Place {
    int x, y;
  };
  std::vector<Place> piece;
  std::string path;
  const auto finish = [&] {
    for (size_t i = 0; i < piece.size(); ++i) {
      if (i > 0 && i + 1 < piece.size() && piece[i - 1].y == piece[i].y && piece[i + 1].y == piece[i].y) continue;
      path += fmt::format("{}{},{}", i == 0 ? "M" : " ", piece[i].x, piece[i].y);
    }
    if (piece.size() == 1) path += "h0";
    piece.clear();
  };
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (!std::isfinite(curve.y[i]) || are_lonely) finish();
    if (std::isfinite(curve.y[i])) piece.push_back({units(plot.x.place(curve.x[i])), units(1 - plot.y.place(curve.y[i]))});
  }
  finish();
  return path;
}

std::string series_path(const Series& series, const Plot& plot) {
  static constexpr const char* kClasses[] = {"line", "faint", "dashed", "dots", "specks", "holes"};
  const auto path = path_of(series.curve, plot, series.stroke >= Stroke::dots);
  if (path.empty()) return "";
  auto data = series.stroke == Stroke::faint ? "" : fmt::format(" data-n=\"{}\"", escape(series.name));
  if (!series.values.empty()) data += fmt::format(" data-v=\"{}\"", escape(base::join(series.values, " ")));
  return fmt::format("<path class=\"{} {} r{}\"{} d=\"{}\"><title>{}</title></path>\n", kClasses[static_cast<size_t>(series.stroke)],
                     colour_class(series.run), series.run, data, path, escape(series.name));
}

std::string frame(const Plot& plot) {
  std::string out;
  for (const auto& tick : ticks(plot.y, plot.tall ? 7 : 5)) {
    const double place = 100 * (1 - plot.y.place(tick.value));
    out += fmt::format(
        "<line class=\"grid\" x1=\"0\" x2=\"100%\" y1=\"{0:.2f}%\" y2=\"{0:.2f}%\"/><text class=\"y\" x=\"-8\" y=\"{0:.2f}%\" "
        "dy=\".35em\">{1}</text>\n",
        place, tick.label);
  }
  const auto x_ticks = plot.x_ticks.empty() ? ticks(plot.x, 5) : plot.x_ticks;
  for (const auto& tick : x_ticks) {
    const double place = 100 * plot.x.place(tick.value);
    out += fmt::format("<text class=\"x\" x=\"{:.2f}%\" y=\"100%\" dy=\"1.5em\">{}</text>\n", place, escape(tick.label));
  }
  return out + "<line class=\"base\" x1=\"0\" x2=\"100%\" y1=\"100%\" y2=\"100%\"/>\n";
}

// Where the script finds the values of a plot that has them at given places only.
std::string points_data(const Plot& plot) {
  if (plot.points.empty()) return "";
  std::vector<std::string> values;
  for (const double point : plot.points) values.push_back(fmt::format("{:.17g}", point));
  return fmt::format(" data-at=\"{}\" data-xlog=\"{}\" data-factor=\"{:.17g}\"", base::join(values, " "), plot.x.logarithmic ? 1 : 0,
                     plot.factor);
}

// Each name once, with the colour of the first series that has it.
std::string keys(const Plot& plot) {
  if (!plot.keys) return "";
  std::vector<std::string> named;
  std::string out;
  for (const auto& series : plot.series) {
    if (series.stroke == Stroke::faint || std::find(named.begin(), named.end(), series.name) != named.end()) continue;
    named.push_back(series.name);
    out += fmt::format("<span class=\"r{}\"><span class=\"dot {}\"></span>{}</span>", series.run, colour_class(series.run),
                       escape(series.name));
  }
  return "<p class=\"keys\">" + out + "</p>";
}

std::string marks(const Plot& plot) {
  std::string out;
  for (const auto& mark : plot.marks) {
    const double place = plot.x.place(mark.x);
    if (!(place >= 0 && place <= 1)) continue;
    out += fmt::format(
        "<g class=\"mark c{0} r{1}\"><title>{2}</title><line x1=\"{3:.2f}%\" x2=\"{3:.2f}%\" y1=\"0\" y2=\"100%\"/>"
        "<svg x=\"{3:.2f}%\" y=\"0\" overflow=\"visible\"><path d=\"M-5-6h10l-5 7z\"/></svg></g>\n",
        colour_of(mark.run), mark.run, escape(mark.text), 100 * place);
  }
  return out;
}

}  // namespace

std::pair<double, double> x_range(const std::vector<Series>& series) {
  double low = INFINITY, high = -INFINITY;
  for (const auto& one : series) {
    for (size_t i = 0; i < one.curve.x.size(); ++i) {
      if (!std::isfinite(one.curve.x[i])) continue;
      low = std::min(low, one.curve.x[i]);
      high = std::max(high, one.curve.x[i]);
    }
  }
  if (!(low <= high)) return {0, 1};
  return low == high ? std::pair{low - 1, high + 1} : std::pair{low, high};
}

Axis y_axis(const std::vector<Series>& series, const RangeOptions& options) {
  std::vector<double> values;
  for (const auto& one : series) {
    std::copy_if(one.curve.y.begin(), one.curve.y.end(), std::back_inserter(values), [](double value) { return std::isfinite(value); });
  }
  if (values.empty()) return {0, 1, false, options.format};
  const auto [lowest, highest] = std::minmax_element(values.begin(), values.end());
  double low = *lowest, high = *highest;
  if (options.clip > 0) {
    const double usual_low = options.from_zero ? std::min(low, 0.0) : quantile(values, options.clip),
                 usual_high = quantile(values, 1 - options.clip);
    const double usual = usual_high - usual_low;
    // Extremes go only where they would leave the rest less than 40 % of the height.
    if (usual > 0 && (high - usual_low) * 0.4 > usual) high = std::min(high, usual_high + 0.3 * usual);
    if (usual > 0 && (usual_high - low) * 0.4 > usual) low = std::max(low, usual_low - 0.3 * usual);
  }
  const bool logarithmic = options.allow_logarithmic && *lowest > 0 && quantile(values, 0.99) > kLogarithmicRatio * quantile(values, 0.01);
  if (logarithmic) return fitted(*lowest, *highest, true, false, options.format);
  return fitted(low, high, false, options.from_zero, options.format);
}

size_t clipped_points(const std::vector<Series>& series, const Axis& axis) {
  size_t count = 0;
  for (const auto& one : series) {
    count +=
        static_cast<size_t>(std::count_if(one.curve.y.begin(), one.curve.y.end(), [&](double y) { return y > axis.high || y < axis.low; }));
  }
  return count;
}

std::string render(const Plot& plot) {
  std::string out = fmt::format("<figure{}><figcaption><h3>{}</h3><p>{}</p>{}</figcaption>\n<div class=\"plot\">",
                                plot.tall ? " class=\"tall\"" : "", escape(plot.title), escape(plot.note), keys(plot));
  out += fmt::format("<span class=\"unit\">{}</span><span class=\"xlabel\">{}</span>", escape(plot.unit), escape(plot.x_label));
  out += fmt::format(
      "<svg class=\"p\" width=\"100%\" height=\"100%\" role=\"img\" aria-label=\"{}\" data-x0=\"{:.10g}\" data-x1=\"{:.10g}\" "
      "data-y0=\"{:.10g}\" "
      "data-y1=\"{:.10g}\" data-log=\"{}\" data-x=\"{}\" data-u=\"{}\"{}>\n",
      escape(plot.title), plot.x.low, plot.x.high, plot.y.low, plot.y.high, plot.y.logarithmic ? 1 : 0, escape(plot.x_label),
      escape(plot.unit), points_data(plot));
  out += frame(plot);
  out += marks(plot);
  out += fmt::format("<svg class=\"d\" width=\"100%\" height=\"100%\" viewBox=\"0 0 {0} {0}\" preserveAspectRatio=\"none\">\n",
                     static_cast<int>(kUnits));
  // Layers from below; a hole lies on the dots of its own series, not on those of all.
  for (const auto& layer :
       {std::vector{Stroke::faint}, {Stroke::specks}, {Stroke::dashed}, {Stroke::line}, {Stroke::dots, Stroke::holes}}) {
    for (const auto& series : plot.series) {
      if (std::find(layer.begin(), layer.end(), series.stroke) != layer.end()) out += series_path(series, plot);
    }
  }
  return out + "</svg><line class=\"rule\" y1=\"0\" y2=\"100%\"/></svg></div></figure>\n";
}

}  // namespace ingot::report
