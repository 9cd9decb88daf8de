#include "report/sweep/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/files.h"
#include "base/text.h"
#include "report/page/document.h"
#include "report/page/html.h"
#include "report/plots/line_plot.h"
#include "report/run/metrics_reader.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;

constexpr size_t kNamed = 8;              // best runs that have a colour of their own
constexpr size_t kMostCurves = 64;        // of the best runs; more would only darken the plot
constexpr size_t kMostPoints = 400;       // of a curve
constexpr size_t kMostCoordinates = 200;  // runs in the parallel coordinates
constexpr int64_t kLargestMetrics = int64_t{1} << 30;

struct Row {
  std::string name;
  std::vector<std::string> values;
  const TrialResult* last = nullptr;  // null: has not run
  size_t rank = SIZE_MAX;             // from 0, the best; SIZE_MAX: none
};

std::vector<Row> rows_of(const SweepResults& sweep) {
  const auto ranking = sweep.ranking();
  std::vector<Row> rows;
  for (const auto& [name, values] : sweep.trials) {
    Row row{name, values, sweep.last_of(name)};
    for (size_t i = 0; i < ranking.size(); ++i)
      if (ranking[i]->trial == name) row.rank = i, row.last = ranking[i];
    rows.push_back(std::move(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.rank < b.rank; });
  return rows;
}

std::string described(const SweepResults& sweep, const Row& row) {
  std::vector<std::string> parts;
  for (size_t s = 0; s < sweep.settings.size(); ++s) parts.push_back(sweep.settings[s] + " = " + row.values[s]);
  return row.name + ": " + base::join(parts, ", ");
}

// The best have colours of their own, the others one together.
size_t colour(const Row& row) { return std::min(row.rank, kNamed - 1); }

Curve thinned(const Metrics& metrics, Field field) {
  Curve curve;
  const auto& values = metrics[field];
  const size_t each = std::max<size_t>(1, values.size() / kMostPoints);
  // A mean over each stretch: noise would hide which run is ahead.
  for (size_t from = 0; from < values.size(); from += each) {
    double sum = 0;
    size_t count = 0;
    for (size_t i = from; i < std::min(values.size(), from + each); ++i)
      if (std::isfinite(values[i])) sum += values[i], ++count;
    if (count == 0) continue;
    curve.x.push_back(metrics.step[std::min(values.size(), from + each) - 1]);
    curve.y.push_back(sum / static_cast<double>(count));
  }
  return curve;
}

std::string curves(const SweepResults& sweep, const std::vector<Row>& rows, const fs::path& folder) {
  Plot plot{.title = "Training loss",
            .unit = "nats per token",
            .x_label = "step",
            .note = "the best runs in colour",
            .series = {},
            .marks = {},
            .x = {},
            .y = {},
            .tall = true};
  for (size_t i = 0; i < std::min(rows.size(), kMostCurves); ++i) {
    const auto path = folder / "runs" / rows[i].name / "metrics.jsonl";
    std::error_code none;
    if (!fs::exists(path, none)) continue;
    auto curve = thinned(read_metrics(base::read_file(path, kLargestMetrics)), Field::loss);
    if (!curve.x.empty())
      plot.series.push_back(
          {described(sweep, rows[i]), colour(rows[i]), rows[i].rank < kNamed - 1 ? Stroke::line : Stroke::faint, std::move(curve)});
  }
  if (plot.series.empty()) return "";
  // The best are drawn over the others.
  std::reverse(plot.series.begin(), plot.series.end());
  const auto [low, high] = x_range(plot.series);
  plot.x = fitted(low, high, false, true, Format::count);
  plot.y = y_axis(plot.series, {.allow_logarithmic = true, .clip = 0.02});
  return render(plot);
}

// A setting's place on an axis: its number, or the place of its text among all.
struct Scale {
  bool is_number = true, is_logarithmic = false;
  std::vector<std::string> texts;
  double low = 0, high = 1;

  explicit Scale(const std::vector<std::string>& values) {
    std::set<std::string> known(values.begin(), values.end());
    for (const auto& value : known) is_number = is_number && base::parse_number(value).has_value();
    texts.assign(known.begin(), known.end());
    if (is_number)
      std::sort(texts.begin(), texts.end(), [](const auto& a, const auto& b) { return *base::parse_number(a) < *base::parse_number(b); });
    low = of(texts.front()), high = of(texts.back());
    is_logarithmic = is_number && low > 0 && high / low > 8;
  }
  double of(const std::string& value) const {
    if (is_number) return *base::parse_number(value);
    return static_cast<double>(std::find(texts.begin(), texts.end(), value) - texts.begin());
  }
  /// In [0, 1].
  double share(const std::string& value) const {
    if (low == high) return 0.5;
    return is_logarithmic ? std::log(of(value) / low) / std::log(high / low) : (of(value) - low) / (high - low);
  }
};

std::vector<std::string> values_of(const std::vector<Row>& rows, size_t setting) {
  std::vector<std::string> values;
  for (const auto& row : rows) values.push_back(row.values[setting]);
  return values;
}

std::string against_setting(const SweepResults& sweep, const std::vector<Row>& rows, size_t setting) {
  const Scale scale(values_of(rows, setting));
  Plot plot{.title = sweep.metric + " against " + sweep.settings[setting],
            .unit = "nats per token",
            .x_label = sweep.settings[setting],
            .note = scale.is_number ? "" : "from the left: " + base::join(scale.texts, ", "),
            .series = {},
            .marks = {},
            .x = {},
            .y = {},
            .tall = false,
            .keys = false,
            .scattered = true};
  for (const auto& row : rows)
    if (row.rank != SIZE_MAX && row.last->rung + 1 == static_cast<int64_t>(sweep.rungs.size()))
      plot.series.push_back({described(sweep, row), colour(row), Stroke::dots, {{scale.of(row.values[setting])}, {row.last->metric}}});
  if (plot.series.empty()) return "";
  const double margin = scale.is_number ? 0 : 0.3;  // texts lie at whole numbers
  plot.x = fitted(scale.low - margin, scale.high + margin, scale.is_logarithmic, false, Format::plain);
  plot.y = y_axis(plot.series, {.clip = 0.1});
  return render(plot);
}

// One vertical axis for each setting and one for the metric, best at the top; a line for each run. Drawn here: it needs no script.
std::string parallel_coordinates(const SweepResults& sweep, const std::vector<Row>& rows) {
  std::vector<const Row*> done;
  for (const auto& row : rows)
    if (row.rank != SIZE_MAX && done.size() < kMostCoordinates) done.push_back(&row);
  if (done.size() < 2) return "";
  constexpr double kHeight = 260, kTop = 34, kLeft = 70;
  const size_t axes = sweep.settings.size() + 1;
  const double step = std::max(120.0, 760.0 / static_cast<double>(axes)), width = 2 * kLeft + step * static_cast<double>(axes - 1);
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" aria-label=\"parallel coordinates of the runs\" "
      "style=\"width:100%;max-width:{:.0f}px;font-size:11px\">",
      width, kHeight + kTop + 26, 1.3 * width);
  const auto x_of = [&](size_t axis) { return kLeft + step * static_cast<double>(axis); };
  const auto y_of = [&](double share) { return kTop + kHeight * (1 - share); };
  std::vector<Scale> scales;
  for (size_t s = 0; s + 1 < axes; ++s) scales.emplace_back(values_of(rows, s));
  double best = INFINITY, worst = -INFINITY;
  for (const auto* row : done) best = std::min(best, row->last->metric), worst = std::max(worst, row->last->metric);
  const auto merit = [&](const Row& row) {
    const double spread = worst - best;
    return spread > 0 ? 1 - (row.last->metric - best) / spread : 0.5;
  };
  const auto text = [&](double x, double y, const std::string& what, const char* anchor) {
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" fill=\"currentColor\">{}</text>", x, y, anchor, escape(what));
  };
  for (auto row = done.rbegin(); row != done.rend(); ++row) {
    std::string points;
    for (size_t s = 0; s + 1 < axes; ++s) points += fmt::format("{:.1f},{:.1f} ", x_of(s), y_of(scales[s].share((*row)->values[s])));
    points += fmt::format("{:.1f},{:.1f}", x_of(axes - 1), y_of(merit(**row)));
    // From blue, the worst, to orange, the best.
    const double m = static_cast<double>(done.size() - 1 - (*row)->rank) / static_cast<double>(done.size() - 1);
    svg += fmt::format(
        "<polyline points=\"{}\" fill=\"none\" stroke=\"hsl({:.0f} 75% {:.0f}%)\" stroke-width=\"{:.1f}\" opacity=\"{:.2f}\">"
        "<title>{}: {}</title></polyline>",
        points, 215 - 185 * m, 62 - 10 * m, 1 + 1.5 * m, 0.35 + 0.6 * m, escape(described(sweep, **row)), number((*row)->last->metric));
  }
  for (size_t axis = 0; axis < axes; ++axis) {
    svg += fmt::format("<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"currentColor\" stroke-width=\"1\"/>",
                       x_of(axis), y_of(0), y_of(1));
    const bool is_metric = axis + 1 == axes;
    text(x_of(axis), 12, is_metric ? sweep.metric : sweep.settings[axis], "middle");
    text(x_of(axis), kTop - 6, is_metric ? number(best) : scales[axis].texts.back(), "middle");
    text(x_of(axis), kTop + kHeight + 14, is_metric ? number(worst) : scales[axis].texts.front(), "middle");
  }
  return "<h2>Parallel coordinates</h2><p class=\"when\">A line for each run that came to an end, from blue (worst) to orange (best); "
         "settings over wide ranges "
         "are on logarithmic axes.</p><div class=\"cards\" style=\"--card:100%\"><section class=\"card\"><div class=\"scroll\">" +
         svg + "</svg></div></section></div>\n";
}

std::string table(const SweepResults& sweep, const std::vector<Row>& rows) {
  std::string head, body;
  const auto column = [&](const std::string& name) { head += fmt::format("<th scope=\"col\">{}</th>", escape(name)); };
  for (const auto& setting : sweep.settings) column(setting);
  for (const char* name : {"status", "steps", "seconds"}) column(name);
  column(sweep.metric);
  for (const auto& row : rows) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", escape(row.name));
    const auto cell = [&](const std::string& text) { body += fmt::format("<td>{}</td>", escape(text)); };
    for (const auto& value : row.values) cell(value);
    if (!row.last) {
      for (const char* text : {"waiting", "", "", ""}) cell(text);
    } else {
      const bool is_out = row.last->status == TrialStatus::done && row.last->rung + 1 < static_cast<int64_t>(sweep.rungs.size());
      cell(is_out ? fmt::format("out at rung {}", row.last->rung + 1) : name_of(row.last->status));
      cell(grouped(row.last->step));
      cell(number(row.last->seconds));
      cell(row.last->status == TrialStatus::done ? number(row.last->metric) : row.last->message);
    }
    body += "</tr>\n";
  }
  return fmt::format(
      "<h2>Runs</h2><div class=\"cards\" style=\"--card:100%\"><section class=\"card\"><div "
      "class=\"scroll\"><table><thead><tr><th>run</th>{}"
      "</tr></thead><tbody>\n{}</tbody></table></div></section></div>\n",
      head, body);
}

std::string verdict(const SweepResults& sweep, const std::vector<Row>& rows) {
  size_t done = 0, diverged = 0, failed = 0;
  for (const auto& row : rows) {
    if (!row.last) continue;
    done += row.last->status == TrialStatus::done ? 1 : 0;
    diverged += row.last->status == TrialStatus::diverged ? 1 : 0;
    failed += row.last->status == TrialStatus::failed ? 1 : 0;
  }
  std::string text = fmt::format("{} of {} runs came to an end", done, rows.size());
  if (diverged > 0) text += fmt::format(", {} diverged", diverged);
  if (failed > 0) text += fmt::format(", {} failed", failed);
  text += ".";
  if (rows.empty() || rows.front().rank == SIZE_MAX) return text;
  text += fmt::format(" The best is {}, with {} {}.", described(sweep, rows.front()), sweep.metric, number(rows.front().last->metric));
  for (size_t s = 0; s < sweep.settings.size(); ++s) {
    const Scale scale(values_of(rows, s));
    const auto& value = rows.front().values[s];
    if (scale.texts.size() > 2 && scale.is_number && (value == scale.texts.front() || value == scale.texts.back()))
      text += fmt::format(" Its {} is at the edge of what was tried: the best may lie beyond.", sweep.settings[s]);
  }
  return text;
}

}  // namespace

Content content_of(const SweepResults& sweep, const fs::path& folder) {
  const auto rows = rows_of(sweep);
  std::string body = fmt::format("<p class=\"verdict\">{}</p>\n", escape(verdict(sweep, rows)));
  std::string plots = curves(sweep, rows, folder);
  for (size_t s = 0; s < sweep.settings.size(); ++s) plots += against_setting(sweep, rows, s);
  if (!plots.empty()) body += "<h2>Curves</h2><div class=\"plots\">\n" + plots + "</div>\n";
  body += parallel_coordinates(sweep, rows) + table(sweep, rows);
  return {"Sweep over " + base::join(sweep.settings, ", "), body};
}

std::string make_sweep_page(const SweepResults& sweep, const fs::path& folder, std::string_view written) {
  const auto content = content_of(sweep, folder);
  return document(content.title, written, content.body);
}

fs::path write_sweep_page(const SweepResults& sweep, const fs::path& folder) {
  auto path = folder / "report.html";
  base::write_file_atomically(path, make_sweep_page(sweep, folder, local_time()));
  return path;
}

}  // namespace ingot::report
