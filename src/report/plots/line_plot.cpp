#include "report/plots/line_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "report/page/html.h"
#include "report/plots/figure.h"
#include "report/plots/palette.h"
#include "report/run/summary.h"

namespace ingot::report {
namespace {

constexpr double kLogarithmicRatio = 30;
// Of the table that stands for a plot where no script runs.
constexpr size_t kTableRows = 12, kTableColumns = 16;

// Each name once, with the colour of the first series that has it.
std::string keys_of(const Plot& plot) {
  std::vector<std::pair<std::string, std::string>> named;
  for (const auto& series : plot.series) {
    const auto is_named = [&](const auto& entry) { return entry.second == series.name; };
    if (series.stroke != Stroke::faint && series.stroke != Stroke::dashed && std::none_of(named.begin(), named.end(), is_named))
      named.emplace_back(colour_class(series.run), series.name);
  }
  return plot.keys ? keys(named) : "";
}

// The last point up to x, which may be a gap; none before the first.
std::optional<size_t> point_at(const Curve& curve, double x) {
  const auto after = std::upper_bound(curve.x.begin(), curve.x.end(), x) - curve.x.begin();
  return after > 0 ? std::optional(static_cast<size_t>(after - 1)) : std::nullopt;
}

// Rows at points of the first series, with the last value of the others up to there; nothing of points that belong to no curve.
std::string numbers_of(const Plot& plot) {
  std::vector<const Series*> columns;
  for (const auto& series : plot.series) {
    const bool has_name = std::any_of(columns.begin(), columns.end(), [&](const Series* other) { return other->name == series.name; });
    if (series.stroke != Stroke::faint && !has_name && columns.size() < kTableColumns) columns.push_back(&series);
  }
  if (columns.empty() || plot.scattered) return "";
  std::string head, body;
  for (const auto* series : columns) head += fmt::format("<th scope=\"col\">{}</th>", escape(series->name));
  const auto& x = columns.front()->curve.x;
  for (size_t row = 0; row < std::min(kTableRows, x.size()); ++row) {
    const double at = x[x.size() <= kTableRows ? row : row * (x.size() - 1) / (kTableRows - 1)];
    body += fmt::format("<tr><th scope=\"row\">{}</th>", number(at));
    for (const auto* series : columns) {
      const auto point = point_at(series->curve, at);
      body += fmt::format("<td>{}</td>", number(point ? series->curve.y[*point] : NAN));
    }
    body += "</tr>\n";
  }
  return fmt::format(
      "<div class=\"scroll\"><table><thead><tr><th>{}, or the last before it</th>{}</tr></thead><tbody>\n{}</tbody></table></div>",
      escape(plot.x_label), head, body);
}

nlohmann::ordered_json series_json(const Series& series) {
  static constexpr const char* kStrokes[] = {"line", "faint", "mean", "dashed", "dots", "specks", "holes"};
  return {{"name", series.name},
          {"run", series.run},
          {"stroke", kStrokes[static_cast<size_t>(series.stroke)]},
          {"x", exact(series.curve.x)},
          {"y", rounded(series.curve.y)}};
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
  Figure figure{.title = plot.title,
                .style = plot.tall ? "tall" : "",
                .note = plot.note,
                .more = keys_of(plot),
                .numbers = numbers_of(plot),
                .data = {}};
  figure.data = {{"kind", "lines"}, {"x", axis_json(plot.x, plot.x_label)}, {"y", axis_json(plot.y, plot.unit)}};
  if (plot.scattered) figure.data["scattered"] = true;
  auto& series = figure.data["series"] = nlohmann::ordered_json::array();
  for (const auto& one : plot.series) series.push_back(series_json(one));
  auto& marks = figure.data["marks"] = nlohmann::ordered_json::array();
  for (const auto& mark : plot.marks)
    if (std::isfinite(mark.x)) marks.push_back({{"x", mark.x}, {"run", mark.run}, {"text", mark.text}});
  return render(figure);
}

}  // namespace ingot::report
