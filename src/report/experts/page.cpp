#include "report/experts/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/page/document.h"
#include "report/page/html.h"
#include "report/plots/line_plot.h"

namespace ingot::report {
namespace {

// Series by experts of a token; the fronts are series of their own behind those.
struct Names {
  std::vector<int64_t> top_k;
  size_t of(const ExpertPoint& point) const {
    return static_cast<size_t>(std::find(top_k.begin(), top_k.end(), point.top_k) - top_k.begin());
  }
  size_t front() const { return top_k.size(); }
  size_t base() const { return top_k.size() + 1; }
  std::vector<std::string> all() const {
    std::vector<std::string> names;
    for (const int64_t k : top_k) names.push_back(fmt::format("{} expert{} a token", k, k == 1 ? "" : "s"));
    names.emplace_back("front of throughput and latency");
    names.emplace_back("the configuration");
    return names;
  }
};

Names names_of(const ExpertPage& page) {
  std::set<int64_t> known;
  for (const auto& point : page.points) known.insert(point.top_k);
  return {{known.begin(), known.end()}};
}

std::string label(const ExpertPoint& p) { return fmt::format("{} of {} experts, width {}", p.top_k, p.experts, p.width); }

std::string plot_of(const ExpertPage& page, const Names& names, bool decode) {
  const auto latency_us = [&](const ExpertPoint& p) { return 1e6 * (decode ? p.decode_s : p.prefill_s); };
  Plot plot{.title = decode ? "Training throughput against the latency of a token" : "Training throughput against the latency of a prompt",
            .unit = "tokens/s",
            .x_label = decode ? "µs for a decoded token" : "µs for a prompt",
            .note = "up and to the left is better; the ring is the configuration",
            .series = {},
            .marks = {},
            .x = {},
            .y = {},
            .tall = true,
            .scattered = true};
  std::vector<const ExpertPoint*> front;
  for (const auto& p : page.points) {
    if (p.tokens_per_s <= 0) continue;
    plot.series.push_back({label(p), names.of(p), Stroke::dots, {{latency_us(p)}, {p.tokens_per_s}}});
    if (decode ? p.on_decode_front : p.on_prefill_front) front.push_back(&p);
  }
  for (const auto& p : page.points) {
    if (!p.is_base || p.tokens_per_s <= 0) continue;
    plot.series.push_back({"the configuration: " + label(p), names.base(), Stroke::dots, {{latency_us(p)}, {p.tokens_per_s}}});
    plot.series.push_back({label(p), names.base(), Stroke::holes, {{latency_us(p)}, {p.tokens_per_s}}});
  }
  std::sort(front.begin(), front.end(), [&](const auto* a, const auto* b) { return latency_us(*a) < latency_us(*b); });
  Series line{.name = "front", .run = names.front(), .stroke = Stroke::dashed, .curve = {}};
  for (const auto* p : front) {
    line.curve.x.push_back(latency_us(*p));
    line.curve.y.push_back(p->tokens_per_s);
  }
  plot.series.push_back(std::move(line));
  const auto [low, high] = x_range(plot.series);
  plot.x = fitted(low, high, false, false, Format::count);
  plot.y = y_axis(plot.series, {.format = Format::count});
  return render(plot);
}

std::string table(const ExpertPage& page) {
  std::string head, body;
  for (const auto& column : page.columns) head += fmt::format("<th scope=\"col\">{}</th>", escape(column));
  for (const auto& p : page.points) {
    body += fmt::format("<tr><th scope=\"row\">{}{}</th>", escape(label(p)), p.is_base ? ", the configuration" : "");
    for (const auto& cell : p.cells) body += fmt::format("<td>{}</td>", escape(cell));
    body += "</tr>\n";
  }
  return fmt::format(
      "<h2>All of them</h2><div class=\"cards\" style=\"--card:100%\"><section class=\"card\"><div "
      "class=\"scroll\"><table><thead><tr><td></td>{}"
      "</tr></thead><tbody>\n{}</tbody></table></div></section></div>\n",
      head, body);
}

}  // namespace

std::string make_expert_page(const ExpertPage& page, std::string_view written) {
  const auto names = names_of(page);
  std::string body = name_bar(names.all(), "experts of a token");
  body += "<h2>Training and serving</h2>\n";
  for (const auto& note : page.notes) body += fmt::format("<p class=\"verdict\">{}</p>\n", escape(note));
  body += "<div class=\"plots\">\n" + plot_of(page, names, true) + plot_of(page, names, false) + "</div>\n" + table(page);
  return document(page.title, written, body);
}

}  // namespace ingot::report
