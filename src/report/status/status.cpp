#include "report/status/status.h"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <functional>

#include "base/error.h"
#include "base/files.h"
#include "base/run_events.h"
#include "base/text.h"
#include "report/page/html.h"
#include "report/run/summary.h"
#include "report/watch/held_signals.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kLongestHolder = 1024;

Json or_null(double value) { return std::isfinite(value) ? Json(value) : Json(); }

std::string time_text(double seconds) {
  const auto whole = static_cast<std::time_t>(std::clamp(seconds, 0.0, 1e11));
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", fmt::localtime(whole));
}

std::string plural(int64_t count, const char* what) { return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s"); }

}  // namespace

RunStatus status_of(const fs::path& folder, double now_s) {
  const auto run = read_run(folder, LastLine::is_being_written);
  const auto& metrics = run.metrics;
  const auto& events = run.happened.events;
  require_run(run);
  RunStatus status;
  status.folder = folder;
  status.failures = run.happened.failures, status.hangs = run.happened.hangs, status.restarts = run.happened.restarts;
  status.lost_s = run.happened.lost_s;
  if (!events.empty()) status.last_event = events.back();

  double last_s = metrics.step.empty() ? std::nan("") : metrics[Field::time_s].back();
  if (!status.last_event.is_null()) last_s = std::fmax(last_s, number_of(status.last_event, "time_s"));
  status.silent_s = now_s - last_s;
  const auto last = status.last_event.is_null() ? "" : kind_of(status.last_event);
  if (base::FileLock::is_held(folder / ".lock")) {
    status.state = RunState::running;
    try {
      status.why = base::read_file(folder / ".lock", kLongestHolder);
    } catch (const base::FileError&) {
    }
    status.why.erase(std::find(status.why.begin(), status.why.end(), '\n'), status.why.end());
  } else if (last == "end") {
    status.state = RunState::ended;
    status.why = details_of(status.last_event);
  } else if (last == "gave_up" || last == "failure" || last == "hang" || last == "excluded") {
    status.state = RunState::failed;
    if (!run.happened.troubles.empty()) status.why = details_of(events[run.happened.troubles.back().event]);
  } else {
    status.why = "its process ended without a word, or another program version wrote this";
  }

  const auto summary = summarise(metrics);
  const auto of_last = [&](Field field) { return metrics.step.empty() ? Json() : or_null(metrics[field].back()); };
  status.numbers = {{"step", or_null(summary.last_step)},
                    {"steps", or_null(summary.planned_steps)},
                    {"tokens", or_null(summary.tokens)},
                    {"loss", of_last(Field::loss)},
                    {"recent_loss", or_null(summary.recent_loss)},
                    {"validation_loss", or_null(summary.final_validation)},
                    {"best_validation_loss", or_null(summary.best_validation)},
                    {"best_validation_step", or_null(summary.best_validation_step)},
                    {"step_ms", or_null(summary.step_ms)},
                    {"predicted_step_ms", or_null(summary.predicted_step_ms)},
                    {"tokens_per_s", or_null(summary.tokens_per_s)},
                    {"mfu", or_null(summary.mfu)},
                    {"memory_peak_bytes", or_null(summary.memory_bytes)},
                    {"predicted_memory_bytes", or_null(summary.predicted_memory_bytes)},
                    {"eta_s", or_null((summary.planned_steps - summary.last_step) * summary.step_ms / 1e3)}};
  for (const auto& source : summarise_sources(metrics))
    if (std::isfinite(source.recent_loss)) status.numbers["source_loss"][source.name] = source.recent_loss;
  for (const auto& [name, value] : run.facts) status.numbers["run"][name] = value;
  const auto& saves = run.checkpoints.folder.stretches;
  double saved = std::nan("");
  for (const auto& stretch : saves) saved = std::fmax(saved, stretch.slowest.step);
  status.numbers["saved_step"] = or_null(saved);
  return status;
}

namespace {

const char* name_of(RunState state) {
  switch (state) {
    case RunState::running: return "running";
    case RunState::ended: return "ended";
    case RunState::failed: return "failed";
    case RunState::gone: return "gone";
  }
  return "";
}

std::string text_of(const Json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string known(const Json& numbers, const char* name, const std::function<std::string(double)>& text) {
  const auto found = numbers.find(name);
  return found != numbers.end() && found->is_number() ? text(found->get<double>()) : "";
}

std::string difference(const Json& numbers, const char* predicted, const char* measured, const std::function<std::string(double)>& text) {
  const double expected = number_of(numbers, predicted), real = number_of(numbers, measured);
  return expected > 0 && real > 0 ? fmt::format(" (predicted {}, {})", text(expected), signed_percent(expected / real - 1)) : "";
}

}  // namespace

Json RunStatus::json() const {
  Json out{{"run", folder.string()}, {"state", name_of(state)}, {"why", why},           {"silent_s", or_null(silent_s)},
           {"failures", failures},   {"hangs", hangs},          {"restarts", restarts}, {"lost_s", lost_s}};
  out["last_event"] = last_event;
  out["numbers"] = numbers;
  return out;
}

std::string RunStatus::text() const {
  std::string out;
  const auto line = [&](const char* name, const std::string& value) {
    if (!value.empty()) out += fmt::format("{:<9} {}\n", name, value);
  };
  const auto ms = [](double value) { return value >= 1e4 ? number(value / 1e3) + " s" : number(value) + " ms"; };
  const auto bytes = [](double value) { return base::format_bytes(static_cast<int64_t>(value)); };
  line("run", folder.string());
  if (const auto run = numbers.find("run"); run != numbers.end()) {
    std::vector<std::string> facts;
    if (const auto model = text_of(*run, "model"); !model.empty()) facts.push_back(model);
    if (const auto count = base::parse_number(text_of(*run, "parameters"))) facts.push_back(base::format_count(*count) + " parameters");
    if (const auto precision = text_of(*run, "precision"); !precision.empty()) facts.push_back(precision);
    if (const auto ranks = text_of(*run, "ranks"); !ranks.empty()) facts.push_back(ranks + (ranks == "1" ? " rank" : " ranks"));
    if (const auto device = text_of(*run, "device"); !device.empty()) facts.push_back(device);
    line("", base::join(facts, ", "));
  }
  line("state", fmt::format("{}: {}", name_of(state), why));
  const double step = number_of(numbers, "step"), steps = number_of(numbers, "steps");
  if (std::isfinite(step)) {
    auto progress = fmt::format("step {}", grouped(static_cast<int64_t>(step)));
    if (steps > 0) {
      const int filled = static_cast<int>(std::clamp(20 * step / steps, 0.0, 20.0));
      progress = fmt::format("[{}{}] ", std::string(static_cast<size_t>(filled), '#'), std::string(static_cast<size_t>(20 - filled), '.')) +
                 progress + fmt::format(" of {} ({:.1f} %)", grouped(static_cast<int64_t>(steps)), 100 * step / steps);
    }
    progress += known(numbers, "tokens", [](double value) { return ", " + base::format_count(value) + " tokens"; });
    if (state == RunState::running && number_of(numbers, "eta_s") > 0)
      progress += known(numbers, "eta_s", [](double value) { return ", " + base::format_duration(value) + " left"; });
    line("progress", progress);
  }
  line("loss",
       known(numbers, "loss", number) + known(numbers, "validation_loss", [](double value) { return ", validation " + number(value); }) +
           known(numbers, "best_validation_loss", [&](double value) {
             return fmt::format(" (best {} after step {})", number(value),
                                known(numbers, "best_validation_step", [](double step) { return grouped(static_cast<int64_t>(step)); }));
           }));
  if (const auto sources = numbers.find("source_loss"); sources != numbers.end()) {
    constexpr size_t kMost = 8;
    std::vector<std::string> words;
    for (const auto& [name, loss] : sources->items())
      if (words.size() < kMost) words.push_back(fmt::format("{} {}", name, number(loss.get<double>())));
    if (sources->size() > kMost) words.push_back("…");
    line("sources", base::join(words, ", "));
  }
  line("speed", known(numbers, "step_ms", [&](double value) {
                  return ms(value) + " a step" + difference(numbers, "predicted_step_ms", "step_ms", ms);
                }) + known(numbers, "tokens_per_s", [](double value) {
                  return ", " + base::format_count(value) + " tokens/s";
                }) + known(numbers, "mfu", [](double value) { return value > 0 ? fmt::format(", MFU {:.1f} %", 100 * value) : ""; }));
  line("memory", known(numbers, "memory_peak_bytes", [&](double value) {
         return bytes(value) + " a rank" + difference(numbers, "predicted_memory_bytes", "memory_peak_bytes", bytes);
       }));
  line("saved", known(numbers, "saved_step", [&](double value) {
         return fmt::format("step {}, {} ago", grouped(static_cast<int64_t>(value)),
                            plural(static_cast<int64_t>(std::max(0.0, step - value)), "step"));
       }));
  if (std::isfinite(silent_s)) line("heard", fmt::format("{} ago", base::format_duration(std::max(0.0, silent_s))));
  if (failures + hangs + restarts > 0)
    line("trouble", fmt::format("{}, {}, {}; {} lost", plural(failures, "failure"), plural(hangs, "hang"), plural(restarts, "restart"),
                                base::format_duration(lost_s)));
  if (!last_event.is_null()) line("last", event_text(last_event));
  while (out.ends_with("\n\n")) out.pop_back();
  return out;
}

std::string event_text(const Json& event) {
  auto text = fmt::format("{}  {:<8} {}", time_text(number_of(event, "time_s")), kind_of(event), details_of(event));
  if (const auto lines = event.find("last_lines"); lines != event.end() && lines->is_array())
    for (const auto& line : *lines)
      if (line.is_string()) text += "\n    " + line.get<std::string>();
  return text;
}

namespace {

double now_s() { return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count(); }

void print(const std::string& text) {
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) throw base::FileError("cannot write to standard output");
}

}  // namespace

int run_status(const StatusOptions& options) {
  const auto show = [&] {
    const auto status = status_of(options.folder, now_s());
    return options.json ? status.json().dump(options.watch ? -1 : 2, ' ', false, Json::error_handler_t::replace) + "\n" : status.text();
  };
  if (!options.watch) {
    print(show());
    return 0;
  }
  const HeldSignals signals;
  const bool is_terminal = isatty(STDOUT_FILENO) == 1 && !options.json;
  do print((is_terminal ? "\x1b[H\x1b[J" : "") + show() + (is_terminal || options.json ? "" : "\n"));
  while (!signals.wait_for_one());
  return 0;
}

int run_events(const EventsOptions& options) {
  const HeldSignals signals;
  size_t shown = 0;
  if (!fs::is_directory(options.folder)) throw base::DataError("there is no folder {}", options.folder.string());
  do {
    const auto read = base::read_run_events(options.folder);
    if (shown == 0 && read.events.empty() && !options.follow)
      throw base::DataError("{} has no events.jsonl: nothing has happened there, or an older version trained it", options.folder.string());
    for (; shown < read.events.size(); ++shown) {
      const auto& event = read.events[shown];
      print((options.json ? event.dump(-1, ' ', false, Json::error_handler_t::replace) : event_text(event)) + "\n");
    }
  } while (options.follow && !signals.wait_for_one());
  return 0;
}

}  // namespace ingot::report
