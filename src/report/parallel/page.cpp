#include "report/parallel/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/text.h"
#include "report/page/document.h"
#include "report/page/html.h"
#include "report/parallel/group.h"
#include "report/parallel/plots.h"
#include "report/plots/palette.h"

namespace ingot::report {
namespace {

constexpr std::string_view kDash = "–";
// Longer lists of sentences are folded, and of refusals no more are shown.
constexpr size_t kMaxOpenSentences = 24, kMaxRefusals = 500;

std::string ranks_text(int ranks) { return fmt::format("{} rank{}", grouped(ranks), ranks == 1 ? "" : "s"); }

std::string method_head(const std::vector<std::string>& names, size_t method) {
  return fmt::format("<tr class=\"r{}\"><th scope=\"row\"><span class=\"dot {}\"></span>{}</th>", method, colour_class(method),
                     escape(names[method]));
}

std::string card(std::string_view title, const std::string& head, const std::string& body) {
  return fmt::format(
      "<section class=\"card\"><h2>{}</h2><div class=\"scroll\"><table class=\"wrap\"><thead><tr><td></td>{}</tr></thead><tbody>\n"
      "{}</tbody></table></div></section>\n",
      title, head, body);
}

std::string column_head(const std::string& text) { return fmt::format("<th scope=\"col\">{}</th>", escape(text)); }

// The least time at a length among what fits the device, or among all where nothing does.
double best_ms(const ParallelGroup& group, int64_t seq) {
  double best = INFINITY, best_of_all = INFINITY;
  for (const auto method : group.methods) {
    const auto* result = group.find(method, seq);
    if (!result) continue;
    best_of_all = std::min(best_of_all, result->time_ms);
    if (result->fits) best = std::min(best, result->time_ms);
  }
  return std::isfinite(best) ? best : best_of_all;
}

std::string time_cell(const schedule::Result* result, double best) {
  if (!result) return fmt::format("<td>{}</td>", kDash);
  return fmt::format("<td{} data-v=\"{}\"{}>{}{}</td>", result->time_ms == best ? " class=\"best\"" : "", result->time_ms,
                     result->fits ? "" : " title=\"more than the memory of a device\"", number(result->time_ms),
                     result->fits ? "" : "<span class=\"far\">!</span>");
}

std::string time_table(const ParallelGroup& group, const std::vector<std::string>& names) {
  std::string head, body;
  for (const auto seq : group.seqs) head += column_head(tokens_text(seq));
  for (const auto method : group.methods) {
    body += method_head(names, method);
    for (const auto seq : group.seqs) body += time_cell(group.find(method, seq), best_ms(group, seq));
    body += "</tr>\n";
  }
  const bool all_fit = std::all_of(group.results.begin(), group.results.end(), [](const auto& entry) { return entry.second->fits; });
  return card(fmt::format("Time in ms, the least of each length marked{}", all_fit ? "" : "; ! more than the memory of a device"), head,
              body);
}

std::string operation_cell(const schedule::Result& result, const std::string& kind) {
  const auto found = result.ops.find(kind);
  if (found == result.ops.end()) return fmt::format("<td>{}</td>", kDash);
  const auto& traffic = found->second;
  return fmt::format("<td title=\"{} sent, {} received\">{}</td>", base::format_bytes(traffic.sent_bytes),
                     base::format_bytes(traffic.received_bytes), grouped(traffic.calls));
}

// "" where no method says anything.
std::string operation_table(const ParallelGroup& group, const std::vector<std::string>& names) {
  const auto seq = group.seqs.back();
  std::vector<std::string> kinds;
  for (const auto& kind : schedule::traffic_kinds()) {
    const bool is_used = std::any_of(group.methods.begin(), group.methods.end(), [&](size_t method) {
      const auto* result = group.find(method, seq);
      return result && result->ops.contains(kind);
    });
    if (is_used) kinds.push_back(kind);
  }
  if (kinds.empty()) return "";
  // The sum first: it is in sight on narrow screens, where the rest scrolls.
  std::string head = column_head("received"), body;
  for (auto kind : kinds) {
    std::replace(kind.begin(), kind.end(), '_', ' ');
    head += column_head(kind);
  }
  for (const auto method : group.methods) {
    const auto* result = group.find(method, seq);
    if (!result) continue;
    body += method_head(names, method);
    const auto bytes = schedule::received_bytes(result->ops);
    body += fmt::format("<td data-v=\"{}\">{}</td>", bytes, base::format_bytes(bytes));
    for (const auto& kind : kinds) body += operation_cell(*result, kind);
    body += "</tr>\n";
  }
  return card(fmt::format("Operations of a rank at {} tokens", tokens_text(seq)), head, body);
}

std::string group_section(const ParallelGroup& group, const std::vector<std::string>& names, bool has_batches) {
  const auto title = fmt::format("{}, {}, {}{}", group.layer, pass_text(group.pass), ranks_text(group.ranks),
                                 has_batches ? fmt::format(", batch {}", group.batch) : "");
  return fmt::format(
      "<h3 class=\"group\">{}</h3>\n<div class=\"plots pairwise\">\n{}</div>\n<div class=\"cards\" style=\"--card:460px\">\n{}{}</div>\n",
      escape(title), parallel_plots(group, names), time_table(group, names), operation_table(group, names));
}

std::string sentence(const schedule::Crossover& crossover) {
  using schedule::Quantity;
  const std::string gain = crossover.quantity == Quantity::time             ? "needs less time than"
                           : crossover.quantity == Quantity::received_bytes ? "receives fewer bytes than"
                                                                            : "needs less memory than";
  return fmt::format("{}{}, {}: from {} tokens on <b>{}</b> {} <b>{}</b>", crossover.layer.empty() ? "" : escape(crossover.layer) + ", ",
                     pass_text(crossover.pass), ranks_text(crossover.ranks), tokens_text(crossover.seq), escape(crossover.lower), gain,
                     escape(crossover.higher));
}

std::string crossover_list(const schedule::SweepResult& sweep) {
  if (sweep.crossovers.empty()) return "";
  std::string items;
  for (const auto& crossover : sweep.crossovers) items += "<li>" + sentence(crossover) + "</li>\n";
  const auto count = sweep.crossovers.size();
  const auto list = fmt::format("<ul>\n{}</ul>\n", items);
  return "<h3 class=\"group\">Crossovers</h3>\n" +
         (count <= kMaxOpenSentences ? list : fmt::format("<details><summary>{} of them</summary>\n{}</details>\n", count, list));
}

std::string refusal_list(const ParallelFile& file) {
  const auto& refusals = file.sweep.refusals;
  if (refusals.empty()) return "";
  std::string items;
  for (size_t i = 0; i < std::min(refusals.size(), kMaxRefusals); ++i)
    items += fmt::format("<li>{}, {}, {} tokens: {}</li>\n", escape(refusals[i].method), ranks_text(refusals[i].ranks),
                         tokens_text(refusals[i].seq), escape(refusals[i].reason));
  if (refusals.size() > kMaxRefusals) items += fmt::format("<li>… and {} more</li>\n", refusals.size() - kMaxRefusals);
  return fmt::format("<details><summary>{} combination{} not {}</summary>\n<ul>\n{}</ul></details>\n",
                     grouped(static_cast<int64_t>(refusals.size())), refusals.size() == 1 ? "" : "s", file.mode, items);
}

// "block; forward; 2 or 8 ranks; 8K to 128K tokens"
std::string extent(const ParallelFile& file) {
  std::vector<std::string> layers, passes, methods;
  std::set<int> ranks;
  std::set<int64_t> seqs, batches;
  const auto add = [](std::vector<std::string>& names, const std::string& name) {
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  };
  for (const auto& result : file.sweep.results) {
    add(layers, result.layer);
    add(passes, pass_text(result.pass));
    add(methods, result.method);
    ranks.insert(result.ranks);
    seqs.insert(result.seq);
    batches.insert(result.batch);
  }
  const auto lengths =
      seqs.size() == 1 ? tokens_text(*seqs.begin()) : fmt::format("{} to {}", tokens_text(*seqs.begin()), tokens_text(*seqs.rbegin()));
  return fmt::format("{}: {}; {}; {} rank{}; {} tokens; batch {}.", escape(base::join(methods, ", ")), escape(base::join(layers, ", ")),
                     base::join(passes, ", "), fmt::join(ranks, ", "), *ranks.rbegin() == 1 ? "" : "s", lengths, fmt::join(batches, ", "));
}

std::string file_section(const ParallelFile& file, const std::vector<std::string>& names, bool is_one_of_several) {
  const auto groups = groups_of(file, names);
  const bool has_batches =
      std::any_of(groups.begin(), groups.end(), [&](const auto& group) { return group.batch != groups.front().batch; });
  const bool is_modelled = file.mode == "modelled";
  const auto how = is_one_of_several ? escape(file.name) + (is_modelled ? ": modelled for" : ": measured on")
                                     : std::string(is_modelled ? "Modelled for" : "Measured on");
  auto out = fmt::format("<h2>{} {}</h2>\n<p class=\"verdict\">{}</p>\n", how, escape(file.machine), extent(file));
  for (const auto& group : groups) out += group_section(group, names, has_batches);
  return out + crossover_list(file.sweep) + refusal_list(file);
}

constexpr std::string_view kNotes =
    "<h2>How to read the numbers</h2><div class=\"notes\"><p>Time is that of the slowest rank. Exposed communication is the part of it in "
    "which a rank computes nothing because it waits for others. Bytes received, operations and peak memory are those of the rank with "
    "most; "
    "memory counts weights, gradients where there is a backward pass, activations and buffers. 8K tokens are 8,192; memory and "
    "communication "
    "are "
    "in units of 2^10 bytes (KiB, MiB, GiB).</p></div>\n";

}  // namespace

std::string make_parallel_page(const std::vector<ParallelFile>& files, std::string_view written) {
  std::vector<std::string> file_names;
  for (const auto& file : files) file_names.push_back(file.name);
  const auto names = method_names(files);
  std::string body = name_bar(names, "methods");
  for (const auto& file : files) body += file_section(file, names, files.size() > 1);
  return document("Parallel methods: " + shortened(base::join(file_names, ", "), 120), written, body + std::string(kNotes));
}

}  // namespace ingot::report
