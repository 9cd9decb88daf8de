#include "report/plots/heat_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "report/page/html.h"

namespace ingot::report {
namespace {

// Up to this many cells each one is an element of its own with a title; above, cells of one level share a path.
constexpr size_t kMaxTitledCells = 600;
// Numbers of steps are long.
constexpr size_t kMaxSpanLabels = 6;

// -1 for a missing value.
int level_of(double value, const HeatMap& map) {
  if (!std::isfinite(value)) return -1;
  const double place = map.high > map.low ? (value - map.low) / (map.high - map.low) : 0;
  return std::min(static_cast<int>(std::clamp(place, 0.0, 1.0) * kHeatLevels), kHeatLevels - 1);
}

// Of the colour.
size_t strength(int level, const HeatMap& map) { return static_cast<size_t>(map.low_is_strong ? kHeatLevels - 1 - level : level); }

std::string name_of(const std::vector<Span>& spans, size_t index) {
  return index < spans.size() ? text_of(spans[index]) : fmt::format("{}", index);
}

// A label beside the axis: of several numbers the first.
std::string label_of(const std::vector<Span>& spans, size_t index) {
  return index < spans.size() ? text_of({spans[index].first, spans[index].first}) : fmt::format("{}", index);
}

std::string titled_cells(const HeatMap& map) {
  std::string out;
  for (size_t row = 0; row < map.rows.size(); ++row) {
    for (size_t column = 0; column < map.rows[row].size(); ++column) {
      const double value = map.rows[row][column];
      const int level = level_of(value, map);
      if (level < 0) continue;
      out += fmt::format("<rect class=\"l{}\" x=\"{}\" y=\"{}\" width=\"1\" height=\"1\"><title>{} {}, {} {}: {} {}</title></rect>\n",
                         strength(level, map), column, row, escape(map.y_label), name_of(map.row_spans, row), escape(map.x_label),
                         name_of(map.column_spans, column), number(value), escape(map.unit));
    }
  }
  return out;
}

std::string level_paths(const HeatMap& map) {
  std::array<std::string, kHeatLevels> paths;
  for (size_t row = 0; row < map.rows.size(); ++row) {
    const auto& cells = map.rows[row];
    for (size_t begin = 0; begin < cells.size();) {
      const int level = level_of(cells[begin], map);
      size_t end = begin + 1;
      while (end < cells.size() && level_of(cells[end], map) == level) ++end;
      if (level >= 0) paths[static_cast<size_t>(level)] += fmt::format("M{} {}h{}v1h-{}z", begin, row, end - begin, end - begin);
      begin = end;
    }
  }
  std::string out;
  for (size_t level = 0; level < paths.size(); ++level) {
    if (!paths[level].empty()) out += fmt::format("<path class=\"l{}\" d=\"{}\"/>\n", strength(static_cast<int>(level), map), paths[level]);
  }
  return out;
}

// Levels as digits, row by row, for the script that names the cell under the pointer.
std::string level_digits(const HeatMap& map) {
  std::string out;
  for (const auto& row : map.rows) {
    for (const double value : row) {
      const int level = level_of(value, map);
      out += level < 0 ? '-' : static_cast<char>('0' + level);
    }
  }
  return out;
}

std::string row_and_column_labels(const HeatMap& map) {
  std::string out;
  const auto row_count = static_cast<double>(map.rows.size());
  const size_t row_stride = (map.rows.size() + 11) / 12;
  for (size_t row = 0; row < map.rows.size(); row += row_stride) {
    out += fmt::format("<text class=\"y\" x=\"-8\" y=\"{:.2f}%\" dy=\".35em\">{}</text>\n",
                       100 * (static_cast<double>(row) + 0.5) / row_count, label_of(map.row_spans, row));
  }
  const auto column_count = static_cast<double>(map.rows.front().size());
  if (map.x_high > map.x_low) {
    const Axis axis{map.x_low, map.x_high, false, map.x_format};
    for (const auto& tick : ticks(axis, 5)) {
      out += fmt::format("<text class=\"x\" x=\"{:.2f}%\" y=\"100%\" dy=\"1.5em\">{}</text>\n", 100 * axis.place(tick.value), tick.label);
    }
  } else {
    const size_t most = map.column_spans.empty() ? 16 : kMaxSpanLabels;
    const size_t stride = (map.rows.front().size() + most - 1) / most;
    for (size_t column = 0; column < map.rows.front().size(); column += stride) {
      out += fmt::format("<text class=\"x\" x=\"{:.2f}%\" y=\"100%\" dy=\"1.5em\">{}</text>\n",
                         100 * (static_cast<double>(column) + 0.5) / column_count, label_of(map.column_spans, column));
    }
  }
  return out;
}

std::string scale_number(double value, const HeatMap& map) {
  return map.high - map.low >= 1 || value == 0 ? fmt::format("{:.1f}", value) : number(value);
}

std::string colour_scale(const HeatMap& map) {
  std::string out =
      fmt::format("<span class=\"scale\">{} <svg width=\"120\" height=\"10\" viewBox=\"0 0 {} 1\" preserveAspectRatio=\"none\">",
                  scale_number(map.low, map), kHeatLevels);
  for (int level = 0; level < kHeatLevels; ++level)
    out += fmt::format("<rect class=\"l{}\" x=\"{}\" width=\"1\" height=\"1\"/>", strength(level, map), level);
  return out + fmt::format("</svg> {} {}</span>", scale_number(map.high, map), escape(map.unit));
}

// For the script: "0–3|4–7".
std::string names_of(const std::vector<Span>& spans, const char* attribute) {
  if (spans.empty()) return "";
  std::string out;
  for (const auto& span : spans) out += (out.empty() ? "" : "|") + text_of(span);
  return fmt::format(" {}=\"{}\"", attribute, out);
}

}  // namespace

std::string text_of(const Span& span) {
  const auto one = [](double value) { return grouped(static_cast<int64_t>(value)); };
  return span.first == span.last ? one(span.first) : one(span.first) + "–" + one(span.last);
}

std::string render(const HeatMap& map) {
  if (map.rows.empty() || map.rows.front().empty()) return "";
  const size_t columns = map.rows.front().size(), cells = map.rows.size() * columns;
  std::string out = fmt::format("<figure class=\"{}r{}\"><figcaption><h3>{}</h3><p>{} {}</p></figcaption>\n", map.wide ? "wide " : "",
                                map.run, escape(map.title), escape(map.note), colour_scale(map));
  out += fmt::format("<div class=\"plot heat\"><span class=\"unit\">{}</span><span class=\"xlabel\">{}</span>", escape(map.y_label),
                     escape(map.x_label));
  out += fmt::format("<svg class=\"p\" width=\"100%\" height=\"100%\" role=\"img\" aria-label=\"{}\">", escape(map.title));
  out += row_and_column_labels(map) + "<rect class=\"frame\" width=\"100%\" height=\"100%\"/>\n";
  const bool titled = cells <= kMaxTitledCells;
  const auto data =
      titled ? std::string()
             : fmt::format(
                   " data-rows=\"{}\" data-low=\"{:.6g}\" data-high=\"{:.6g}\" data-x0=\"{:.10g}\" data-x1=\"{:.10g}\" "
                   "data-y=\"{}\" data-x=\"{}\" "
                   "data-u=\"{}\"{}{} data-levels=\"{}\"",
                   map.rows.size(), map.low, map.high, map.x_low, map.x_high, escape(map.y_label), escape(map.x_label), escape(map.unit),
                   names_of(map.row_spans, "data-rn"), names_of(map.column_spans, "data-cn"), level_digits(map));
  out += fmt::format(
      "<svg class=\"h\" width=\"100%\" height=\"100%\" viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" "
      "shape-rendering=\"crispEdges\"{}>\n",
      columns, map.rows.size(), data);
  out += titled ? titled_cells(map) : level_paths(map);
  return out + "</svg></svg></div></figure>\n";
}

}  // namespace ingot::report
