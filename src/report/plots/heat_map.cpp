#include "report/plots/heat_map.h"

#include <fmt/format.h>

#include <cmath>

#include "report/page/html.h"
#include "report/plots/figure.h"

namespace ingot::report {
namespace {

constexpr size_t kTableCells = 150;

std::string scale_number(double value, const HeatMap& map) {
  return map.high - map.low >= 1 || value == 0 ? fmt::format("{:.1f}", value) : number(value);
}

std::string colour_scale(const HeatMap& map) {
  return fmt::format("<p class=\"scale\">{} <span class=\"{}\"></span> {} {}</p>", scale_number(map.low, map),
                     map.low_is_strong ? "ramp falling" : "ramp", scale_number(map.high, map), escape(map.unit));
}

// Without spans the numbers from 0 on, which the script knows.
void add_names(nlohmann::ordered_json& data, const char* key, const std::vector<Span>& spans) {
  for (const auto& span : spans) data[key].push_back(text_of(span));
}

// Where no script runs. Columns that stand for a range have no names of their own.
std::string numbers_of(const HeatMap& map) {
  if (map.rows.size() * map.rows.front().size() > kTableCells || map.x_high > map.x_low) return "";
  const auto name_of = [](const std::vector<Span>& spans, size_t i) { return i < spans.size() ? text_of(spans[i]) : fmt::format("{}", i); };
  std::string head, body;
  for (size_t i = 0; i < map.rows.front().size(); ++i) head += fmt::format("<th scope=\"col\">{}</th>", name_of(map.column_spans, i));
  for (size_t row = 0; row < map.rows.size(); ++row) {
    body += fmt::format("<tr><th scope=\"row\">{}</th>", name_of(map.row_spans, row));
    for (const double value : map.rows[row]) body += fmt::format("<td>{}</td>", number(value));
    body += "</tr>\n";
  }
  return fmt::format("<div class=\"scroll\"><table><thead><tr><th>{}, {}</th>{}</tr></thead><tbody>\n{}</tbody></table></div>",
                     escape(map.y_label), escape(map.x_label), head, body);
}

}  // namespace

std::string text_of(const Span& span) {
  const auto one = [](double value) { return grouped(static_cast<int64_t>(value)); };
  return span.first == span.last ? one(span.first) : one(span.first) + "–" + one(span.last);
}

std::string render(const HeatMap& map) {
  if (map.rows.empty() || map.rows.front().empty()) return "";
  Figure figure{.title = map.title,
                .style = fmt::format("{}heat r{}", map.wide ? "wide " : "", map.run),
                .note = map.note,
                .more = colour_scale(map),
                .numbers = numbers_of(map),
                .data = {}};
  auto& data = figure.data = {{"kind", "heat"},
                              {"x", axis_json({map.x_low, map.x_high, false, map.x_format}, map.x_label)},
                              {"y", {{"label", map.y_label}}},
                              {"low", rounded(map.low)},
                              {"high", rounded(map.high)},
                              {"unit", map.unit},
                              {"low_is_strong", map.low_is_strong}};
  add_names(data, "row_names", map.row_spans);
  add_names(data, "column_names", map.column_spans);
  for (const auto& row : map.rows) data["rows"].push_back(rounded(row));
  return render(figure);
}

}  // namespace ingot::report
