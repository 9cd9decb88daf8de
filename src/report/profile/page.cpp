#include "report/profile/page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "base/text.h"
#include "plan/work_kind.h"
#include "report/page/document.h"
#include "report/page/html.h"
#include "report/parallel/group.h"
#include "report/plots/palette.h"
#include "report/profile/difference.h"
#include "report/profile/facts.h"
#include "report/profile/plots.h"
#include "report/profile/storage.h"

namespace ingot::report {
namespace {

constexpr std::string_view kDash = "–";
constexpr size_t kOpenLosses = 20, kMaxLosses = 500;
// Ratios beyond these are marked.
constexpr double kLoss = 0.9, kGain = 1 / kLoss;

std::string rate_text(double rate, const std::string& unit) {
  static constexpr std::pair<double, const char*> kPrefixes[] = {{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}};
  for (const auto& [size, prefix] : kPrefixes)
    if (rate >= size) return fmt::format("{} {}{}", number(rate / size), prefix, unit);
  return fmt::format("{} {}", number(rate), unit);
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return number(seconds * 1e6) + " µs";
  return seconds < 1 ? number(seconds * 1e3) + " ms" : number(seconds) + " s";
}

std::string cell(const std::string& text) { return "<td>" + text + "</td>"; }
std::string head(const std::string& text) { return "<th scope=\"col\">" + escape(text) + "</th>"; }
std::string row_head(const std::string& text) { return "<tr><th scope=\"row\">" + escape(text) + "</th>"; }

std::string table(const std::string& kind, const std::string& heads, const std::string& body) {
  return fmt::format("<div class=\"scroll\"><table class=\"{}\"><thead><tr><td></td>{}</tr></thead><tbody>\n{}</tbody></table></div>\n",
                     kind, heads, body);
}

std::string card(const std::string& title, const std::string& heads, const std::string& body) {
  return fmt::format("<section class=\"card\"><h2>{}</h2>{}</section>\n", escape(title), table("wrap", heads, body));
}

std::string cards(int width, const std::string& inner) {
  return inner.empty() ? "" : fmt::format("<div class=\"cards\" style=\"--card:{}px\">\n{}</div>\n", width, inner);
}

std::string plots(const std::string& inner) { return inner.empty() ? "" : "<div class=\"plots\">\n" + inner + "</div>\n"; }

// Of two machines each part says whose it is.
std::string whose(const std::vector<Measured>& machines, size_t i) {
  return machines.size() < 2
             ? ""
             : fmt::format("<h3 class=\"group\"><span class=\"dot {}\"></span>{}</h3>\n", colour_class(i), escape(machines[i].name));
}

std::vector<std::pair<std::string, std::string>> facts_of(const Measured& machine) {
  std::vector<std::pair<std::string, std::string>> facts;
  const auto& p = machine.profile;
  if (machine.has_profile)
    facts = {{"host", p.host},
             {"CPU", p.cpu},
             {"device", p.device},
             {"cores, threads, ranks", fmt::format("{}, {}, {}", p.cores, p.threads, p.ranks)},
             {"torch", p.torch},
             {"build of ingot", p.program},
             {"measured", p.date},
             {"how", p.quick ? "quick: few sizes, each for a short time" : "in full"},
             {"commands", base::join(p.commands, "; ")},
             {"background load", fmt::format("{:.1f} % of the machine", 100 * p.foreign_load)},
             {"smallest operation", p.operation_s > 0 ? time_text(p.operation_s) : std::string(kDash)}};
  if (!machine.descriptions.empty()) facts.emplace_back("collectives", base::join(machine.descriptions, "; "));
  return facts;
}

std::string facts_table(const std::vector<Measured>& machines) {
  std::vector<std::string> names;
  std::map<std::string, std::vector<std::string>> values;
  for (size_t i = 0; i < machines.size(); ++i)
    for (const auto& [name, value] : facts_of(machines[i])) {
      if (!values.contains(name)) names.push_back(name);
      auto& row = values[name];
      row.resize(machines.size(), std::string(kDash));
      row[i] = shortened(value, 300);
    }
  std::string body;
  for (const auto& name : names) {
    body += row_head(name);
    const auto& row = values[name];
    const bool differs = row.front() != row.back();
    for (const auto& value : row) body += fmt::format("<td{}>{}</td>", differs ? " class=\"best\"" : "", escape(value));
    body += "</tr>\n";
  }
  std::string heads;
  if (machines.size() > 1)
    for (const auto& machine : machines) heads += head(machine.name);
  return fmt::format("<div class=\"scroll\"><table class=\"pairs\">{}<tbody>\n{}</tbody></table></div>\n",
                     heads.empty() ? "" : "<thead><tr><td></td>" + heads + "</tr></thead>", body);
}

std::string headline(const Measured& machine) {
  const auto& p = machine.profile;
  std::vector<std::string> parts;
  for (const auto& dtype : dtypes_of(p))
    if (p.peak_gemm(dtype) > 0)
      parts.push_back(fmt::format("GEMMs in {} up to <b>{}</b>", escape(dtype), rate_text(p.peak_gemm(dtype), "FLOP/s")));
  if (const double rate = memory_bytes_per_s(p); rate > 0) parts.push_back(fmt::format("memory at <b>{}</b>", rate_text(rate, "B/s")));
  double bus = 0;
  for (const auto& line : collective_lines(p))
    if (line.operation == "all_reduce") bus = std::max(bus, line.best_bus_bandwidth());
  if (bus > 0) parts.push_back(fmt::format("all-reduce up to <b>{}</b> of bus bandwidth", rate_text(bus, "B/s")));
  return parts.empty() ? "" : "Best: " + base::join(parts, "; ") + ".";
}

std::string headlines(const std::vector<Measured>& machines) {
  std::string out;
  for (size_t i = 0; i < machines.size(); ++i) {
    const auto text = headline(machines[i]);
    if (text.empty()) continue;
    out += machines.size() == 1 ? "<p class=\"verdict\">" + text + "</p>\n"
                                : fmt::format("<p class=\"verdict\"><span class=\"dot {}\"></span><span class=\"run\">{}</span> {}</p>\n",
                                              colour_class(i), escape(machines[i].name), text);
  }
  return out;
}

std::string busy_warning(const Measured& machine) {
  if (!(machine.profile.foreign_load > 0.1)) return "";
  return fmt::format(
      "<p class=\"verdict far\">Other programs used {:.0f} % of the machine meanwhile: rates are too low. Measure again on an idle "
      "machine.</p>\n",
      100 * machine.profile.foreign_load);
}

std::string ratio_cell(double ratio) {
  return fmt::format("<td{}>{:.3f}</td>", ratio < kLoss ? " class=\"far\"" : ratio > kGain ? " class=\"best\"" : "", ratio);
}

std::string difference_rows(const std::vector<Difference>& all, size_t from, size_t to) {
  std::string body;
  for (size_t i = from; i < to; ++i) {
    const auto& one = all[i];
    body += fmt::format("<tr><th scope=\"row\">{}</th>{}<td>{}</td><td>{}</td></tr>\n", escape(one.section + ": " + one.what),
                        ratio_cell(one.ratio()), rate_text(one.first, one.unit), rate_text(one.second, one.unit));
  }
  return body;
}

std::string difference_section(const std::vector<Measured>& machines) {
  const auto all = differences(machines[0], machines[1]);
  std::string out = "<h2>Differences</h2>\n";
  for (const auto& warning : comparison_warnings(machines[0], machines[1])) out += "<p class=\"verdict far\">" + escape(warning) + "</p>\n";
  if (all.empty()) return out + "<p>The two have measured nothing in common.</p>\n";
  out += fmt::format("<p class=\"verdict\">Ratios are rates of {} over rates of {}: below 1 it is slower.</p>\n", escape(machines[1].name),
                     escape(machines[0].name));
  std::string body;
  for (const auto& section : by_section(all))
    body += fmt::format("<tr><th scope=\"row\">{}</th><td>{}</td>{}{}{}<td>{}</td></tr>\n", escape(section.section), section.count,
                        ratio_cell(section.median_ratio), ratio_cell(section.worst.ratio()), ratio_cell(section.best.ratio()),
                        escape(section.worst.what));
  out += table("differ ratios", head("both have") + head("median") + head("worst") + head("best") + head("the worst"), body);
  const auto heads = head("ratio") + head(machines[0].name) + head(machines[1].name);
  const size_t open = std::min(all.size(), kOpenLosses), last = std::min(all.size(), kMaxLosses);
  out += "<h3 class=\"group\">Largest losses</h3>\n" + table("differ ratios losses", heads, difference_rows(all, 0, open));
  if (last > open)
    out += fmt::format("<details><summary>{} more</summary>\n{}</details>\n", last - open,
                       table("differ ratios losses", heads, difference_rows(all, open, last)));
  return out;
}

std::string cache_sentences(const plan::MachineProfile& p) {
  std::string items;
  for (const char* operation : {"copy", "scale", "add", "triad", "dot"})
    for (const auto& step : cache_steps(p.memory, operation))
      items += fmt::format("<li>{}: {} with {} in use, {} with {}</li>\n", operation, rate_text(step.before_bytes_per_s, "B/s"),
                           short_bytes(static_cast<double>(step.fits_bytes)), rate_text(step.after_bytes_per_s, "B/s"),
                           short_bytes(static_cast<double>(step.exceeds_bytes)));
  return items.empty() ? ""
                       : "<details open><summary>Steps: where a rate falls by a quarter or more, as it does when arrays no longer fit a "
                         "cache</summary>\n<ul>\n" +
                             items + "</ul></details>\n";
}

std::string attention_table(const plan::MachineProfile& p) {
  const std::string dash(kDash);
  std::string body;
  for (const auto& curve : attention_curves(p)) {
    body += row_head(fmt::format("{} {}, {}", curve.dtype, curve.backward ? "backward" : "forward", curve.name()));
    body += cell(curve.turn_seq ? tokens_text(std::llround(*curve.turn_seq)) : curve.ridge > 0 ? "never" : dash);
    body += cell(curve.measured_seq ? tokens_text(*curve.measured_seq) : dash) + cell(rate_text(curve.best_flops_per_s, "FLOP/s"));
    body += cell(curve.ridge > 0 ? number(curve.ridge) : dash) + "</tr>\n";
  }
  const auto heads = head("from tokens") + head("80 % from") + head("best rate") + head("balance");
  return body.empty() ? "" : card("Bound by compute from how many tokens on", heads, body);
}

// The largest case of each kernel and dtype.
std::string kernel_table(const plan::MachineProfile& p) {
  std::map<std::pair<std::string, std::string>, const plan::KernelTime*> largest;
  const auto size = [](const plan::KernelTime& k) {
    return static_cast<double>(k.rows) * static_cast<double>(k.width) * static_cast<double>(k.count);
  };
  for (const auto& e : p.kernels) {
    auto& known = largest[{e.dtype, e.name}];
    if (!known || size(e) > size(*known)) known = &e;
  }
  const double triad = memory_bytes_per_s(p);
  const auto share = [&](const plan::KernelTime& k, bool backward) {
    const double seconds = backward ? k.backward_s : k.forward_s, bytes = backward ? k.backward_bytes : k.forward_bytes;
    if (!(bytes > 0) || !(triad > 0) || !(seconds > 0)) return cell(std::string(kDash));
    return cell(fmt::format("{:.0f} %", 100 * bytes / seconds / triad));
  };
  std::map<std::string, std::string> bodies;
  for (const auto& [key, k] : largest)
    bodies[key.first] +=
        row_head(shortened(k->name, 60)) + share(*k, false) + share(*k, true) + cell(time_text(k->forward_s)) +
        cell(k->backward_s > 0 ? time_text(k->backward_s) : std::string(kDash)) +
        cell(fmt::format("{} × {}{}", grouped(k->rows), grouped(k->width), k->count > 1 ? fmt::format(" × {}", k->count) : "")) + "</tr>\n";
  std::string out;
  for (const auto& dtype : dtypes_of(p))
    if (bodies.contains(dtype))
      out += card("Kernels, " + dtype + ", largest size: share of triad",
                  head("forward") + head("backward") + head("forward") + head("backward") + head("size"), bodies[dtype]);
  return out;
}

std::string within_steps_table(const plan::MachineProfile& p) {
  std::string out;
  const std::string dash(kDash);
  for (const auto& dtype : dtypes_of(p)) {
    std::string body;
    for (const auto& e : p.within_steps) {
      const auto kind = plan::work_kind_named(e.kind);
      if (e.dtype != dtype || !kind) continue;
      body += row_head(plan::title_of(*kind)) + cell(e.predicted_s > 0 ? fmt::format("{:.2f}", e.measured_s / e.predicted_s) : dash) +
              cell(time_text(e.measured_s)) + cell(e.predicted_s > 0 ? time_text(e.predicted_s) : dash) + "</tr>\n";
    }
    if (!body.empty()) out += card("Steps of small models, " + dtype, head("times") + head("within steps") + head("by itself"), body);
  }
  return out;
}

std::string collective_table(const plan::MachineProfile& p) {
  std::map<std::string, std::string> bodies;
  std::vector<std::string> kinds;
  for (const auto& line : collective_lines(p)) {
    const auto kind = fmt::format("{} rank{}{}, {}", line.ranks, line.ranks == 1 ? "" : "s",
                                  line.groups > 1 ? fmt::format(" × {} groups, {}", line.groups, line.placement) : "", line.dtype);
    if (!bodies.contains(kind)) kinds.push_back(kind);
    bodies[kind] += row_head(line.operation) + cell(time_text(line.line.latency_s)) +
                    cell(line.line.bytes_per_s > 0 ? rate_text(line.line.bytes_per_s, "B/s") : std::string(kDash)) +
                    cell(fmt::format("{:.0f} %", 100 * line.line.median_error)) + cell(rate_text(line.best_bus_bandwidth(), "B/s")) +
                    cell(short_bytes(line.line.knee_bytes)) + "</tr>\n";
  }
  std::string out;
  for (const auto& kind : kinds)
    out += card("time = latency + bytes / bandwidth, " + kind,
                head("latency") + head("bandwidth") + head("off by") + head("best bus") + head("knee"), bodies[kind]);
  return out;
}

std::string storage_table(const plan::MachineProfile& p) {
  std::string body;
  for (const auto& row : storage_rows(p))
    body += row_head(shortened(row.what, 200)) + cell(rate_text(row.bytes_per_s, "B/s")) + cell(number(row.operations_per_s)) +
            cell(time_text(row.p50_s)) + cell(time_text(row.p99_s)) + "</tr>\n";
  return body.empty() ? "" : table("differ ratios", head("rate") + head("operations/s") + head("median") + head("99 % within"), body);
}

template <class Make>
std::string for_each_machine(const std::vector<Measured>& machines, const Make& make) {
  std::string out;
  for (size_t i = 0; i < machines.size(); ++i) {
    const std::string part = make(machines[i]);
    if (!part.empty()) out += whose(machines, i) + part;
  }
  return out;
}

std::string section(const char* title, const std::string& body) { return body.empty() ? "" : fmt::format("<h2>{}</h2>\n{}", title, body); }

// Folded but for the dtype with the best rate: there are dozens.
std::string maps_of(const Measured& machine, bool is_alone) {
  std::string out, best;
  const auto& p = machine.profile;
  for (const auto& dtype : dtypes_of(p))
    if (best.empty() || p.peak_gemm(dtype) > p.peak_gemm(best)) best = dtype;
  for (const auto& dtype : dtypes_of(p)) {
    const auto maps = plots(gemm_maps(machine, dtype));
    if (!maps.empty())
      out += fmt::format("<details{}><summary>Rates over sizes, {}</summary>\n{}</details>\n", is_alone && dtype == best ? " open" : "",
                         escape(dtype), maps);
  }
  return out;
}

std::string gemm_section(const std::vector<Measured>& machines) {
  const auto maps = for_each_machine(machines, [&](const Measured& m) { return maps_of(m, machines.size() == 1); });
  constexpr std::string_view kKey =
      "<p class=\"key\">Maps: the scale of a dtype ends at its best GEMM; empty cells were not measured.</p>\n";
  return plots(gemm_plots(machines)) + (maps.empty() ? "" : std::string(kKey) + maps);
}

constexpr std::string_view kNotesOfProfile =
    "<p>A GEMM [m, k] × [k, n] is 2 m n k FLOPs, as a linear layer calls it: forward, grad input, or grad weight, which adds to fp32. "
    "Its bytes are those of both operands and of the result, each "
    "moved once; a sum of fp32 is read and written. Attention is causal: 4 × heads × head size × visible pairs, backward twice that; its "
    "bytes are q, k, v and the output once, backward twice that.</p>"
    "<p>Roof: the lesser of bandwidth × FLOPs per byte and the best GEMM measured. The bandwidth is triad’s at its largest size. Points "
    "above the slope found their operands in caches.</p>"
    "<p>Attention turns from bound by memory to bound by compute where its FLOPs per byte, 2 × heads × keys that a query sees on average ÷ "
    "((heads + kv heads) × bytes of an element), reach the machine’s balance: the best GEMM ÷ bandwidth, both as measured here, marked "
    "in "
    "the roofline. A window may keep it below that at any length. Beside it stands the least length measured from which on 80 % of the "
    "best "
    "rate are reached.</p>"
    "<p>Batched GEMMs are many of one size in one call; grouped ones those of experts, which share out the rows: m, "
    "or k "
    "of grad weight, is their mean, and load imbalance the largest number of rows over it.</p>"
    "<p>Share of triad: the bytes that a kernel’s operations read and write, over its time, over triad’s rate; above 100 % it works from "
    "caches. Where matmuls are inside, arithmetic keeps the share low. Profiles of older programs do not know the bytes.</p>"
    "<p>Within steps: what each kind of work took in training steps of a few small models, and what the other measurements give for it. "
    "Predictions multiply by the ratio.</p>";
constexpr std::string_view kNotesOfCollectives =
    "<p>Bus bandwidth is bytes ÷ time × 2 (n − 1) / n for all_reduce, (n − 1) / n for reduce_scatter, all_gather and all_to_all, 1 for "
    "others. The fitted line has the least relative error; “off by” is "
    "its median. Knee: the least size with 90 % of the best bandwidth. GB are 10^9 bytes, MiB 2^20.</p>";

}  // namespace

std::string make_profile_page(const std::vector<Measured>& machines, std::string_view written) {
  std::vector<std::string> names;
  for (const auto& machine : machines) names.push_back(machine.name);
  std::string page = headlines(machines);
  if (machines.size() == 1) page += busy_warning(machines[0]);
  page += name_bar(names, "machines");
  page += "<h2>What was measured</h2>\n" + facts_table(machines);
  if (machines.size() == 2) page += difference_section(machines);
  page += section("GEMMs", gemm_section(machines));
  page += section("Roofline", plots(rooflines(machines)));
  page += section("Memory",
                  plots(memory_plots(machines)) + for_each_machine(machines, [](const Measured& m) { return cache_sentences(m.profile); }));
  page += section("Attention", plots(attention_plots(machines)) +
                                   for_each_machine(machines, [](const Measured& m) { return cards(460, attention_table(m.profile)); }));
  page += section("Kernels", for_each_machine(machines, [](const Measured& m) { return cards(460, kernel_table(m.profile)); }));
  page += section("Within steps", for_each_machine(machines, [](const Measured& m) { return cards(460, within_steps_table(m.profile)); }));
  page += section("Collectives", plots(collective_plots(machines)) +
                                     for_each_machine(machines, [](const Measured& m) { return cards(460, collective_table(m.profile)); }));
  page += section("Storage", for_each_machine(machines, [](const Measured& m) { return storage_table(m.profile); }));
  const bool has_profile = std::any_of(machines.begin(), machines.end(), [](const Measured& m) { return m.has_profile; });
  page += "<h2>How to read the numbers</h2><div class=\"notes\">";
  if (has_profile) page += kNotesOfProfile;
  page += kNotesOfCollectives;
  page += "</div>\n";
  const auto title = base::join(names, " and ");
  const std::string kind = machines.size() == 2 ? "Machines compared: " : has_profile ? "Machine: " : "Collectives: ";
  return document(shortened(kind + title, 160), written, page);
}

}  // namespace ingot::report
