#include "report/sweep/results.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/text.h"

namespace ingot::report {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kLargestFile = int64_t{256} << 20;

const std::vector<std::string>& status_names() {
  static const std::vector<std::string> names = {"done", "diverged", "failed"};
  return names;
}

TrialResult result_of(const Json& line) {
  TrialResult r;
  r.trial = line.at("trial").get<std::string>();
  r.rung = line.at("rung").get<int64_t>();
  r.step = line.at("step").get<int64_t>();
  const auto status = line.at("status").get<std::string>();
  const auto found = std::find(status_names().begin(), status_names().end(), status);
  if (found == status_names().end()) throw base::DataError("a status is '{}'", status);
  r.status = static_cast<TrialStatus>(found - status_names().begin());
  r.metric = line.at("metric").is_number() ? line.at("metric").get<double>() : NAN;
  r.seconds = line.at("seconds").get<double>();
  r.message = line.value("message", "");
  return r;
}

SweepResults head_of(const Json& line) {
  SweepResults sweep;
  sweep.definition = line.at("definition").get<std::string>();
  sweep.metric = line.at("metric").get<std::string>();
  sweep.settings = line.at("settings").get<std::vector<std::string>>();
  sweep.rungs = line.at("rungs").get<std::vector<int64_t>>();
  for (const auto& [name, values] : line.at("trials").items()) {
    sweep.trials.emplace_back(name, values.get<std::vector<std::string>>());
    if (sweep.trials.back().second.size() != sweep.settings.size())
      throw base::DataError("trial {} has {} values of {} settings", name, sweep.trials.back().second.size(), sweep.settings.size());
  }
  return sweep;
}

}  // namespace

std::string name_of(TrialStatus status) { return status_names()[static_cast<size_t>(status)]; }

const TrialResult* SweepResults::last_of(const std::string& trial) const {
  const TrialResult* last = nullptr;
  for (const auto& r : results)
    if (r.trial == trial) last = &r;
  return last;
}

const TrialResult* SweepResults::at(const std::string& trial, int64_t rung) const {
  const TrialResult* last = nullptr;  // one that failed may have been tried again
  for (const auto& r : results)
    if (r.trial == trial && r.rung == rung) last = &r;
  return last;
}

std::vector<const TrialResult*> SweepResults::ranking() const {
  std::vector<const TrialResult*> done;
  for (const auto& [trial, values] : trials) {
    const TrialResult* best = nullptr;
    for (const auto& r : results)
      if (r.trial == trial && r.status == TrialStatus::done && std::isfinite(r.metric)) best = &r;
    if (best) done.push_back(best);
  }
  std::stable_sort(done.begin(), done.end(),
                   [](const auto* a, const auto* b) { return a->rung != b->rung ? a->rung > b->rung : a->metric < b->metric; });
  return done;
}

std::optional<SweepResults> read_sweep(const fs::path& folder) {
  const auto path = folder / "sweep.jsonl";
  std::error_code none;
  if (!fs::exists(path, none)) return std::nullopt;
  const auto lines = base::split(base::read_file(path, kLargestFile), '\n');
  std::optional<SweepResults> sweep;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (lines[i].empty()) continue;
    const auto json = Json::parse(lines[i], nullptr, /*allow_exceptions=*/false);
    if (json.is_discarded() && sweep) continue;  // torn by a kill or a full disk: its run is done again
    try {
      if (!sweep) sweep = head_of(json);
      else sweep->results.push_back(result_of(json));
    } catch (const std::exception& wrong) {
      throw base::DataError("{}, line {}: {}; this is no file of ingot sweep, or it was changed", path.string(), i + 1, wrong.what());
    }
  }
  return sweep;
}

std::string first_line(const SweepResults& sweep) {
  Json trials = Json::object();
  for (const auto& [name, values] : sweep.trials) trials[name] = values;
  return Json{
      {"definition", sweep.definition}, {"metric", sweep.metric}, {"settings", sweep.settings}, {"rungs", sweep.rungs}, {"trials", trials}}
      .dump();
}

std::string line_of(const TrialResult& r) {
  Json line = {{"trial", r.trial}, {"rung", r.rung}, {"step", r.step}, {"status", name_of(r.status)}};
  line["metric"] = std::isfinite(r.metric) ? Json(r.metric) : Json();
  line["seconds"] = r.seconds;
  if (!r.message.empty()) line["message"] = r.message;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ingot::report
