#include "report/events/section.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

#include "base/text.h"
#include "report/page/html.h"

namespace ingot::report {
namespace {

constexpr size_t kMostEvents = 200, kMostLines = 40, kLongestLine = 300;

std::string duration(double seconds) { return seconds > 0 ? base::format_duration(seconds) : "–"; }

std::string time_text(double seconds) {
  if (!(seconds >= 0 && seconds < 1e11)) return "–";
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(static_cast<std::time_t>(seconds)));
}

std::string count(int64_t number, const char* what) { return fmt::format("{} {}{}", grouped(number), what, number == 1 ? "" : "s"); }

std::string in_short(const Happened& happened) {
  double by_hangs = 0;
  for (const auto& trouble : happened.troubles) by_hangs += trouble.is_hang ? trouble.lost_s : 0;
  auto text = fmt::format("{}, {}, {}. Lost: {}", count(happened.failures, "failure"), count(happened.hangs, "hang"),
                          count(happened.restarts, "restart"), duration(happened.lost_s));
  if (by_hangs > 0 && by_hangs < happened.lost_s) text += fmt::format(", of which {} by hangs", duration(by_hangs));
  if (std::isfinite(happened.goodput)) text += fmt::format(". Goodput: {:.1f} %", 100 * happened.goodput);
  return text;
}

std::string row(const nlohmann::ordered_json& event, double lost_s) {
  auto details = escape(shortened(details_of(event), 2 * kLongestLine));
  if (const auto lines = event.find("last_lines"); lines != event.end() && lines->is_array() && !lines->empty()) {
    std::string words;
    for (size_t i = 0; i < std::min(lines->size(), kMostLines); ++i)
      if ((*lines)[i].is_string()) words += escape(shortened((*lines)[i].get<std::string>(), kLongestLine)) + "\n";
    details += "<details><summary>last words</summary><pre>" + words + "</pre></details>";
  }
  return fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td><td>{}</td><td>{}</td></tr>\n", escape(time_text(number_of(event, "time_s"))),
                     escape(shortened(kind_of(event), 40)), duration(lost_s), details);
}

}  // namespace

std::string events_section(const std::vector<RunData>& runs) {
  std::string out;
  for (const auto& run : runs) {
    const auto& happened = run.happened;
    if (happened.troubles.empty() && happened.restarts == 0) continue;
    const size_t skipped = happened.events.size() > kMostEvents ? happened.events.size() - kMostEvents : 0;
    std::string rows;
    auto trouble = happened.troubles.begin();
    for (size_t i = 0; i < happened.events.size(); ++i) {
      while (trouble != happened.troubles.end() && trouble->event < i) ++trouble;
      const double lost_s = trouble != happened.troubles.end() && trouble->event == i ? trouble->lost_s : 0;
      if (i >= skipped) rows += row(happened.events[i], lost_s);
    }
    out += fmt::format(
        "<section class=\"card\"><h2>{}</h2><p>{}.{}</p><div class=\"scroll\"><table class=\"pairs events\"><thead><tr><th "
        "scope=\"col\">time</th><th "
        "scope=\"col\">event</th><th scope=\"col\">lost</th><th "
        "scope=\"col\">what</th></tr></thead><tbody>\n{}</tbody></table></div></section>\n",
        escape(run.name), escape(in_short(happened)),
        skipped > 0 ? fmt::format(" The first {} events are left out.", grouped(static_cast<int64_t>(skipped))) : "", rows);
  }
  return out;
}

}  // namespace ingot::report
