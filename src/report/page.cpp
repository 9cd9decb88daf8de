#include "report/page.h"

#include <fmt/format.h>

#include <set>

#include "base/text.h"
#include "report/checkpoint_section.h"
#include "report/html.h"
#include "report/palette.h"
#include "report/plots.h"
#include "report/style.h"
#include "report/tables.h"

namespace ingot::report {
namespace {

// Names the runs by colour; stays in sight above the plots.
std::string run_bar(const std::vector<RunData>& runs) {
  if (runs.size() < 2) return "";
  std::string out = "<nav class=\"runs\" aria-label=\"runs\">";
  for (size_t i = 0; i < runs.size(); ++i) {
    out += fmt::format("<button type=\"button\" class=\"chip\" data-r=\"{}\"><span class=\"dot c{}\"></span>{}</button>", i, colour_of(i),
                       escape(runs[i].name));
  }
  return out + "</nav>\n";
}

constexpr std::string_view kKey =
    "<p class=\"key\">Faint: every step. Strong: running mean, or median for times and rates. Dots: validation. Dashed: predicted. "
    "▾&nbsp;restart.</p>\n";

std::string definitions(const std::vector<RunData>& runs) {
  std::set<std::string> conventions;
  for (const auto& run : runs) {
    if (!run.mfu_convention.empty()) conventions.insert(run.mfu_convention);
  }
  std::string out = "<h2>How to read the numbers</h2><div class=\"notes\">";
  for (const auto& convention : conventions) out += "<p>" + escape(convention) + "</p>";
  return out +
         "<p>Speeds are medians over all steps but the first after each start. Error is predicted / measured − 1; errors above 10 % are "
         "marked. Loss is in nats per "
         "token, over the global batch. Expert imbalance is the busiest expert’s tokens over the mean of all experts; 1 is an even spread. "
         "Memory is in units of "
         "2^10 bytes (KiB, MiB, GiB), counts in units of 10^3 (k, M, G).</p></div>\n";
}

}  // namespace

std::string make_page(const std::vector<RunData>& runs, std::string_view written) {
  std::vector<std::string> names;
  for (const auto& run : runs) names.push_back(run.name);
  const auto title = shortened(base::join(names, ", "), 120);
  // The policy forbids every request, so that a hostile name in a file could not call home even if it got past escape().
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
      "content=\"width=device-width,initial-scale=1\">\n"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src "
      "'unsafe-inline'\">\n"
      "<title>{0} – ingot report</title>\n<style>{1}</style></head>\n<body><main>\n<header><h1>{0}</h1><p class=\"when\">ingot report, "
      "{2}</p></header>\n",
      escape(title), kStyleSheet, escape(written));
  page += verdicts(runs);
  page += headline_tables(runs);
  page += run_bar(runs);
  const auto plots = loss_plot(runs) + small_plots(runs);
  page += plots.empty() ? "<p>There is nothing to plot yet.</p>\n" : fmt::format("{}<div class=\"plots\">\n{}</div>\n", kKey, plots);
  const auto experts = expert_plots(runs);
  if (!experts.empty()) page += "<h2>Experts</h2>\n" + experts;
  const auto checkpoints = checkpoint_section(runs);
  if (!checkpoints.empty()) page += "<h2>Checkpoints</h2>\n" + checkpoints;
  const auto settings = settings_tables(runs);
  if (!settings.empty()) page += (runs.size() > 1 ? "<h2>Settings that differ</h2>\n" : "<h2>Settings</h2>\n") + settings;
  page += "<h2>Files</h2>\n" + file_remarks(runs);
  page += definitions(runs);
  return page + fmt::format("</main>\n<script>{}</script>\n</body></html>\n", kScript);
}

}  // namespace ingot::report
