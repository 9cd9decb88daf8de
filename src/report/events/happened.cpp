#include "report/events/happened.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/run_events.h"

namespace ingot::report {
namespace {

using Json = nlohmann::ordered_json;

std::string text_of(const Json& event, const char* name) {
  const auto found = event.find(name);
  return found != event.end() && found->is_string() ? found->get<std::string>() : "";
}

// When a step was kept that reaches `step`, after `failed_s`; never: then.
double back_at(double failed_s, double step, const Metrics& metrics) {
  const auto& times = metrics[Field::time_s];
  for (size_t row = 0; row < metrics.step.size(); ++row)
    if (metrics.step[row] >= step && times[row] > failed_s) return times[row];
  return failed_s;
}

double goodput_of(const std::vector<Json>& events, const Metrics& metrics) {
  const auto first = std::find_if(events.begin(), events.end(), [](const auto& event) { return kind_of(event) == "start"; });
  // A run that began before there were events has steps from before the first.
  if (first == events.end() || metrics.step.empty() || number_of(*first, "step") != 0) return std::nan("");
  double kept_ms = 0;
  for (const double step_ms : metrics[Field::step_ms]) kept_ms += std::isfinite(step_ms) ? step_ms : 0;
  const double span_s = metrics[Field::time_s].back() - number_of(*first, "time_s");
  return span_s > 0 ? std::min(1.0, kept_ms / 1e3 / span_s) : std::nan("");
}

}  // namespace

std::string kind_of(const Json& event) { return text_of(event, "event"); }

double number_of(const Json& event, const char* name) {
  const auto found = event.find(name);
  return found != event.end() && found->is_number() ? found->get<double>() : std::nan("");
}

std::string details_of(const Json& event) {
  const auto kind = kind_of(event), what = text_of(event, "what"), why = text_of(event, "why");
  if (!what.empty()) return what;
  if (kind == "start")
    return fmt::format("{:.0f} of {:.0f} steps are done, {:.0f} rank{}", number_of(event, "step"), number_of(event, "steps"),
                       number_of(event, "ranks"), number_of(event, "ranks") == 1 ? "" : "s");
  if (kind == "restart") return fmt::format("number {:.0f}, {}", number_of(event, "attempt"), why);
  if (kind == "end") return fmt::format("after step {:.0f}: {}", number_of(event, "step"), why);
  if (!why.empty()) return why;
  auto rest = event;
  rest.erase("time_s"), rest.erase("event");
  return rest.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Happened read_happened(const std::filesystem::path& run_directory, const Metrics& metrics) {
  auto read = base::read_run_events(run_directory);
  Happened happened;
  happened.events = std::move(read.events), happened.broken_lines = read.broken_lines;
  double until = 0;  // of what has been counted as lost
  for (size_t i = 0; i < happened.events.size(); ++i) {
    const auto& event = happened.events[i];
    const auto kind = kind_of(event);
    happened.restarts += kind == "restart";
    if (kind != "hang" && kind != "failure") continue;
    (kind == "hang" ? happened.hangs : happened.failures) += 1;
    const double failed_s = number_of(event, "time_s") - std::fmax(0, number_of(event, "silent_s"));
    const double back_s = back_at(failed_s, std::fmax(1, number_of(event, "step")), metrics);
    const double lost_s = std::max(0.0, back_s - std::max(failed_s, until));
    until = std::max(until, back_s);
    happened.lost_s += lost_s;
    happened.troubles.push_back({.event = i, .is_hang = kind == "hang", .lost_s = lost_s});
  }
  happened.goodput = goodput_of(happened.events, metrics);
  return happened;
}

}  // namespace ingot::report
