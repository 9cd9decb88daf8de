#include "report/plots/bar_plot.h"

#include <fmt/format.h>

#include <algorithm>

#include "report/plots/figure.h"

namespace ingot::report {
namespace {

std::string keys_of(const BarPlot& plot) {
  std::vector<std::pair<std::string, std::string>> named;
  for (const auto& part : plot.parts) named.emplace_back(part.style, part.name);
  if (!plot.beside.name.empty()) named.emplace_back(plot.beside.style, plot.beside.name);
  if (!plot.tick_name.empty()) named.emplace_back("tick", plot.tick_name);
  if (std::any_of(plot.bars.begin(), plot.bars.end(), [](const Bar& bar) { return bar.failed; })) named.emplace_back("failed", "failed");
  return keys(named);
}

nlohmann::ordered_json bar_json(const Bar& bar) {
  nlohmann::ordered_json out{{"name", text_of({bar.x.first, bar.x.first})}, {"heights", rounded(bar.heights)}, {"text", bar.text}};
  if (bar.beside_to > bar.beside_from) out["beside"] = rounded(std::vector{bar.beside_from, bar.beside_to});
  if (bar.tick > 0) out["tick"] = rounded(bar.tick);
  if (bar.failed) out["failed"] = true;
  if (!bar.mark.empty()) out["mark"] = bar.mark;
  return out;
}

}  // namespace

std::string render(const BarPlot& plot) {
  if (plot.bars.empty()) return "";
  Figure figure{.title = plot.title,
                .style = fmt::format("{}r{}", plot.wide ? "wide " : "", plot.run),
                .note = plot.note,
                .more = keys_of(plot),
                .data = {}};
  auto& data = figure.data = {{"kind", "bars"},
                              {"x", {{"label", plot.x_label}}},
                              {"y", axis_json(plot.y, plot.unit)},
                              {"run", plot.run},
                              {"styles", nlohmann::ordered_json::array()}};
  for (const auto& part : plot.parts) data["styles"].push_back(part.style);
  if (!plot.beside.name.empty()) data["beside"] = plot.beside.style;
  for (const auto& bar : plot.bars) data["bars"].push_back(bar_json(bar));
  return render(figure);
}

}  // namespace ingot::report
