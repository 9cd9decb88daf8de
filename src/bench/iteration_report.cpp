// A step's time by kind of work, for people and for programs.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "bench/iteration.h"
#include "bench/stopwatch.h"

namespace ingot::bench {
namespace {

constexpr size_t kOperatorsShown = 12;
constexpr double kBarWidth = 24;

std::string milliseconds(double ms) { return ms >= 0.005 ? fmt::format("{:.2f}", ms) : ""; }

struct Named {
  std::string name;
  WorkTimes::Operator times;
};

// The costliest first.
std::vector<Named> by_time(const WorkTimes& times) {
  std::vector<Named> all;
  for (const auto& [key, entry] : times.operators) all.push_back({key.first, entry});
  std::sort(all.begin(), all.end(), [](const Named& a, const Named& b) { return a.times.self_s > b.times.self_s; });
  return all;
}

}  // namespace

std::string to_table(const IterationReport& r, const std::map<WorkKind, double>& predicted) {
  if (r.steps == 0) return "no step was watched\n";
  const double steps = static_cast<double>(r.steps), whole = r.step_ms();
  std::string text =
      fmt::format("{:<22}{:>10}{:>10}{:>10}{:>10}{:>8}{:>11}", "ms of a step", "forward", "backward", "rest", "all", "share", "predicted");
  if (r.ranks > 1) text += fmt::format("{:>20}", fmt::format("all of {} ranks", r.ranks));
  text += "\n";
  const auto row = [&](const char* title, const std::array<double, kWorkPasses>& parts, double all, std::optional<double> foretold,
                       const std::string& ranks) {
    text += fmt::format("{:<22}{:>10}{:>10}{:>10}{:>10.2f}{:>6.1f} %{:>11}{}  {}\n", title, milliseconds(parts[1]), milliseconds(parts[2]),
                        milliseconds(parts[0]), all, 100 * all / whole, foretold ? fmt::format("{:.2f}", *foretold) : "-", ranks,
                        std::string(static_cast<size_t>(std::lround(kBarWidth * all / whole)), '#'));
  };
  std::array<double, kWorkPasses> sums{};
  double foretold_sum = 0;
  for (const auto kind : all_work_kinds()) {
    const auto i = static_cast<size_t>(kind);
    std::array<double, kWorkPasses> parts{};
    for (size_t pass = 0; pass < kWorkPasses; ++pass) {
      parts[pass] = r.ms(kind, static_cast<WorkPass>(pass));
      sums[pass] += parts[pass];
    }
    const auto found = predicted.find(kind);
    if (found != predicted.end()) foretold_sum += found->second;
    const bool is_empty = r.most_ms[i] < 0.005 && found == predicted.end();
    if (is_empty && kind != WorkKind::unattributed) continue;
    row(title_of(kind), parts, r.ms(kind), found == predicted.end() ? std::nullopt : std::optional(found->second),
        r.ranks > 1 ? fmt::format("{:>20}", fmt::format("{:.2f} to {:.2f}", r.least_ms[i], r.most_ms[i])) : "");
  }
  row("step", sums, whole, predicted.empty() ? std::nullopt : std::optional(foretold_sum), r.ranks > 1 ? std::string(20, ' ') : "");
  text += fmt::format("\n{} steps watched, median {:.2f} ms; {} steps in between without, median {:.2f} ms: watching costs {:.1f} %\n",
                      r.steps, median(r.watched_ms), r.plain_ms.size(), r.plain_ms.empty() ? 0 : median(r.plain_ms), 100 * r.overhead());
  text += fmt::format("{:.0f} tokens/s without\n\n{:<44}{:<22}{:>10}{:>10}{:>8}\n",
                      r.plain_ms.empty() ? 0 : static_cast<double>(r.tokens_per_step) * 1e3 / median(r.plain_ms),
                      "costliest, without what is inside", "counts as", "calls", "ms", "share");
  const auto all = by_time(r.times);
  for (size_t i = 0; i < std::min(kOperatorsShown, all.size()); ++i) {
    const auto& [name, times] = all[i];
    const double ms = times.self_s * 1e3 / steps;
    text += fmt::format("{:<44}{:<22}{:>10.0f}{:>10.2f}{:>6.1f} %\n", name, title_of(times.kind), static_cast<double>(times.calls) / steps,
                        ms, 100 * ms / whole);
  }
  return text;
}

nlohmann::ordered_json to_json(const IterationReport& r, const std::map<WorkKind, double>& predicted) {
  nlohmann::ordered_json json = {{"format", "ingot iteration benchmark"},
                                 {"version", 1},
                                 {"ranks", r.ranks},
                                 {"steps", r.steps},
                                 {"tokens_per_step", r.tokens_per_step}};
  if (r.steps == 0) return json;
  json["step_ms"] = r.step_ms();
  json["watched_ms"] = r.watched_ms;
  json["plain_ms"] = r.plain_ms;
  json["overhead"] = r.overhead();
  json["kinds"] = nlohmann::ordered_json::array();
  for (const auto kind : all_work_kinds()) {
    const auto i = static_cast<size_t>(kind);
    nlohmann::ordered_json entry = {{"kind", name_of(kind)},
                                    {"forward_ms", r.ms(kind, WorkPass::forward)},
                                    {"backward_ms", r.ms(kind, WorkPass::backward)},
                                    {"rest_ms", r.ms(kind, WorkPass::rest)},
                                    {"ms", r.ms(kind)},
                                    {"share", r.ms(kind) / r.step_ms()},
                                    {"least_rank_ms", r.least_ms[i]},
                                    {"most_rank_ms", r.most_ms[i]}};
    const auto found = predicted.find(kind);
    entry["predicted_ms"] = found == predicted.end() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(found->second);
    json["kinds"].push_back(std::move(entry));
  }
  json["operators"] = nlohmann::ordered_json::array();
  for (const auto& [name, times] : by_time(r.times))
    json["operators"].push_back({{"name", name},
                                 {"kind", name_of(times.kind)},
                                 {"calls", static_cast<double>(times.calls) / static_cast<double>(r.steps)},
                                 {"self_ms", times.self_s * 1e3 / static_cast<double>(r.steps)}});
  return json;
}

nlohmann::ordered_json chrome_trace(const IterationReport& r) {
  constexpr const char* kPasses[] = {"rest", "forward", "backward"};
  auto events = nlohmann::ordered_json::array();
  for (const auto& span : r.times.spans)
    events.push_back({{"ph", "X"},
                      {"pid", 1},
                      {"tid", 0},
                      {"ts", span.begin_s * 1e6},
                      {"dur", (span.end_s - span.begin_s) * 1e6},
                      {"name", span.name},
                      {"cat", name_of(span.kind)},
                      {"args", {{"pass", kPasses[static_cast<size_t>(span.pass)]}}}});
  return {{"traceEvents", std::move(events)}};
}

}  // namespace ingot::bench
