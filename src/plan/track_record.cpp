#include "plan/track_record.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "base/files.h"
#include "base/json_members.h"
#include "plan/describe.h"

namespace ingot::plan {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kReadBytes = int64_t{1} << 20;
constexpr double kDisturbed = 0.1;

// Between neighbours on a line, as numpy.percentile does it. `sorted` has one at least.
double quantile(const std::vector<double>& sorted, double fraction) {
  const double place = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const auto above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (sorted[above] - sorted[below]) * (place - static_cast<double>(below));
}

Quotients quotients_of(std::vector<double> all) {
  Quotients q{.runs = static_cast<int64_t>(all.size())};
  if (all.empty()) return q;
  std::sort(all.begin(), all.end());
  q.median = quantile(all, 0.5), q.low = quantile(all, 0.1), q.high = quantile(all, 0.9);
  return q;
}

Errors errors_from(const std::vector<double>& signed_errors) {
  Errors errors{.runs = static_cast<int64_t>(signed_errors.size())};
  if (signed_errors.empty()) return errors;
  auto sorted = signed_errors;
  std::sort(sorted.begin(), sorted.end());
  errors.bias = quantile(sorted, 0.5);
  for (double& error : sorted) error = std::abs(error);
  std::sort(sorted.begin(), sorted.end());
  errors.median = quantile(sorted, 0.5), errors.p90 = quantile(sorted, 0.9);
  return errors;
}

auto configuration_of(const Outcome& o) { return std::tie(o.machine, o.ranks, o.family, o.precision, o.layout, o.shape); }

double error_of(double predicted, double measured) { return predicted / measured - 1; }

}  // namespace

bool Outcome::is_kin(const Outcome& other) const {
  return machine == other.machine && ranks == other.ranks && family == other.family && precision == other.precision;
}

bool Outcome::is_same_run(const Outcome& other) const { return configuration_of(*this) == configuration_of(other); }

Calibration calibration_for(const Outcome& run, const std::vector<Outcome>& record) {
  std::map<std::tuple<std::string, std::string>, const Outcome*> steps, memories;  // the last of each configuration
  for (const auto& o : record) {
    if (!o.is_kin(run) || o.is_same_run(run) || o.version != run.version) continue;
    if (o.has_step() && o.foreign_load <= kDisturbed) steps[{o.layout, o.shape}] = &o;
    if (o.has_memory()) memories[{o.layout, o.shape}] = &o;
  }
  std::vector<double> step, memory;
  for (const auto& [configuration, o] : steps) step.push_back(o->measured_step_s / o->predicted_step_s);
  for (const auto& [configuration, o] : memories)
    memory.push_back(static_cast<double>(o->measured_memory_bytes) / static_cast<double>(o->predicted_memory_bytes));
  return {quotients_of(std::move(step)), quotients_of(std::move(memory))};
}

const Outcome* last_like(const Outcome& run, const std::vector<Outcome>& record) {
  const auto found =
      std::find_if(record.rbegin(), record.rend(), [&](const Outcome& o) { return o.measured_step_s > 0 && o.is_same_run(run); });
  return found == record.rend() ? nullptr : &*found;
}

std::vector<GroupErrors> errors_of(const std::vector<Outcome>& record) {
  struct Lists {
    std::vector<double> step, calibrated_step, memory, calibrated_memory;
  };
  std::map<std::tuple<std::string, std::string, std::string, int64_t>, Lists> groups;
  for (const auto& o : record) {
    auto& lists = groups[{o.machine, o.family, o.precision, o.ranks}];
    if (o.has_step() && o.foreign_load <= kDisturbed) {
      lists.step.push_back(error_of(o.predicted_step_s, o.measured_step_s));
      if (o.calibrated_step_s > 0) lists.calibrated_step.push_back(error_of(o.calibrated_step_s, o.measured_step_s));
    }
    if (o.has_memory()) {
      const auto measured = static_cast<double>(o.measured_memory_bytes);
      lists.memory.push_back(error_of(static_cast<double>(o.predicted_memory_bytes), measured));
      if (o.calibrated_memory_bytes > 0)
        lists.calibrated_memory.push_back(error_of(static_cast<double>(o.calibrated_memory_bytes), measured));
    }
  }
  std::vector<GroupErrors> all;
  for (const auto& [key, lists] : groups) {
    if (lists.step.empty() && lists.memory.empty()) continue;
    all.push_back({std::get<1>(key), std::get<2>(key), std::get<3>(key), std::get<0>(key), errors_from(lists.step),
                   errors_from(lists.calibrated_step), errors_from(lists.memory), errors_from(lists.calibrated_memory)});
  }
  return all;
}

fs::path record_path(const fs::path& cache_folder) { return cache_folder / "predictions.jsonl"; }

std::vector<Outcome> read_record(const fs::path& path, int64_t* unreadable) {
  if (unreadable) *unreadable = 0;
  std::vector<Outcome> all;
  if (!fs::exists(path)) return all;
  for (const auto& line : base::split(base::read_last_lines(path, kReadBytes), '\n')) {
    if (line.empty()) continue;
    try {
      all.push_back(outcome_from_json(line, path.string()));
    } catch (const base::ProfileError&) {
      if (unreadable) ++*unreadable;
    }
  }
  return all;
}

void append_to_record(const fs::path& path, const Outcome& outcome) {
  if (path.has_parent_path()) base::make_directories(path.parent_path());
  base::append_line(path, to_json_line(outcome));
}

std::string describe(const Outcome& o, const Calibration& calibration, const Outcome* last) {
  std::string text;
  const auto line = [&](std::string_view label, const std::string& value) { text += fmt::format("  {:<26}{}\n", label, value); };
  const auto& step = calibration.step;
  if (step)
    line("calibrated",
         fmt::format("{}; {} to {} as four of five of {} other runs here", format_step_time(o.calibrated_step_s),
                     format_step_time(o.predicted_step_s * step.low), format_step_time(o.predicted_step_s * step.high), step.runs));
  else
    line("uncertainty",
         fmt::format("{} to {}: nine of ten unseen runs were within {:.0f} %", format_step_time(o.predicted_step_s / (1 + kUsualStepError)),
                     format_step_time(o.predicted_step_s / (1 - kUsualStepError)), 100 * kUsualStepError));
  if (calibration.memory)
    line("peak memory, calibrated",
         fmt::format("{}, by {} other runs here", base::format_bytes(o.calibrated_memory_bytes), calibration.memory.runs));
  if (last)
    line("measured before",
         fmt::format("{}, {} ({}{})", format_step_time(last->measured_step_s), base::format_bytes(last->measured_memory_bytes), last->date,
                     last->foreign_load > kDisturbed ? ", disturbed by other programs" : ""));
  return text;
}

nlohmann::ordered_json to_json(const Outcome& o, const Calibration& calibration, const Outcome* last) {
  const auto quotients = [](const Quotients& q, double predicted) {
    if (!q) return nlohmann::ordered_json(nullptr);
    return nlohmann::ordered_json{
        {"runs", q.runs}, {"low", predicted * q.low}, {"median", predicted * q.median}, {"high", predicted * q.high}};
  };
  nlohmann::ordered_json json = {{"step_ms", quotients(calibration.step, o.predicted_step_s * 1e3)},
                                 {"memory_bytes", quotients(calibration.memory, static_cast<double>(o.predicted_memory_bytes))},
                                 {"usual_step_error", kUsualStepError},
                                 {"usual_memory_error", kUsualMemoryError},
                                 {"measured_before", nullptr}};
  if (last)
    json["measured_before"] = {{"date", last->date},
                               {"step_ms", last->measured_step_s * 1e3},
                               {"memory_bytes", last->measured_memory_bytes},
                               {"foreign_load", last->foreign_load}};
  return json;
}

std::string to_json_line(const Outcome& o) {
  const nlohmann::ordered_json json = {{"date", o.date},
                                       {"run", o.run},
                                       {"version", o.version},
                                       {"machine", o.machine},
                                       {"family", o.family},
                                       {"precision", o.precision},
                                       {"layout", o.layout},
                                       {"shape", o.shape},
                                       {"ranks", o.ranks},
                                       {"steps", o.steps},
                                       {"predicted_step_s", o.predicted_step_s},
                                       {"calibrated_step_s", o.calibrated_step_s},
                                       {"measured_step_s", o.measured_step_s},
                                       {"predicted_memory_bytes", o.predicted_memory_bytes},
                                       {"calibrated_memory_bytes", o.calibrated_memory_bytes},
                                       {"measured_memory_bytes", o.measured_memory_bytes},
                                       {"foreign_load", o.foreign_load}};
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

Outcome outcome_from_json(const std::string& line, const std::string& origin) {
  const auto json = nlohmann::json::parse(line, nullptr, false);
  if (json.is_discarded()) throw base::ProfileError("a line of {} is not JSON", origin);
  base::JsonMembers m(json, origin, "the line is of another version of ingot");
  Outcome o;
  o.date = m.text("date"), o.run = m.text("run"), o.version = m.text("version"), o.machine = m.text("machine");
  o.family = m.text("family"), o.precision = m.text("precision"), o.layout = m.text("layout"), o.shape = m.text("shape");
  o.ranks = m.whole("ranks", int64_t{1} << 31);
  o.steps = static_cast<int64_t>(m.not_negative("steps"));
  o.predicted_step_s = m.not_negative("predicted_step_s");
  o.calibrated_step_s = m.not_negative("calibrated_step_s");
  o.measured_step_s = m.not_negative("measured_step_s");
  o.predicted_memory_bytes = static_cast<int64_t>(m.not_negative("predicted_memory_bytes"));
  o.calibrated_memory_bytes = static_cast<int64_t>(m.not_negative("calibrated_memory_bytes"));
  o.measured_memory_bytes = static_cast<int64_t>(m.not_negative("measured_memory_bytes"));
  o.foreign_load = m.not_negative("foreign_load");
  m.finish();
  return o;
}

}  // namespace ingot::plan
