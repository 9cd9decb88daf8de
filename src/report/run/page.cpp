#include "report/run/page.h"

#include <fmt/format.h>

#include <set>

#include "base/text.h"
#include "report/checkpoints/section.h"
#include "report/events/section.h"
#include "report/page/document.h"
#include "report/page/html.h"
#include "report/run/plots.h"
#include "report/run/tables.h"

namespace ingot::report {
namespace {

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
         "token, over the global batch. Load imbalance is the most loaded expert’s tokens over the mean of all experts; 1 is an even load. "
         "Memory is in units of "
         "2^10 bytes (KiB, MiB, GiB), counts in units of 10^3 (k, M, G).</p></div>\n";
}

}  // namespace

Content content_of(const std::vector<RunData>& runs) {
  std::vector<std::string> names;
  for (const auto& run : runs) names.push_back(run.name);
  std::string page = verdicts(runs);
  page += headline_tables(runs);
  page += name_bar(names, "runs");
  const auto plots = loss_plot(runs) + small_plots(runs);
  page += plots.empty() ? "<p>There is nothing to plot yet.</p>\n" : fmt::format("{}<div class=\"plots\">\n{}</div>\n", kKey, plots);
  const auto sources = source_plots(runs);
  if (!sources.empty())
    page +=
        "<h2>Sources</h2>\n<p class=\"key\">Training loss over the predicted tokens of each source.</p>\n" + sources + source_tables(runs);
  const auto evaluations = evaluation_plots(runs);
  if (!evaluations.empty())
    page +=
        "<h2>Evaluations</h2>\n<p class=\"key\">Faint: the 95 % interval, 1.96 standard errors to either side.</p>\n<div "
        "class=\"plots\">\n" +
        evaluations + "</div>\n";
  const auto experts = expert_plots(runs);
  if (!experts.empty()) page += "<h2>Experts</h2>\n" + experts;
  const auto checkpoints = checkpoint_section(runs);
  if (!checkpoints.empty()) page += "<h2>Checkpoints</h2>\n" + checkpoints;
  const auto events = events_section(runs);
  if (!events.empty())
    page +=
        "<h2>What happened</h2>\n<p class=\"key\">Lost: from a failure until the run stood again where it had stood. Goodput: time in "
        "steps "
        "that are kept, over all time since the first start.</p>\n" +
        events;
  const auto settings = settings_tables(runs);
  if (!settings.empty()) page += (runs.size() > 1 ? "<h2>Settings that differ</h2>\n" : "<h2>Settings</h2>\n") + settings;
  page += "<h2>Files</h2>\n" + file_remarks(runs);
  page += definitions(runs);
  return {shortened(base::join(names, ", "), 120), page};
}

std::string make_page(const std::vector<RunData>& runs, std::string_view written) {
  const auto content = content_of(runs);
  return document(content.title, written, content.body);
}

}  // namespace ingot::report
