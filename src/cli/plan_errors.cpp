// `ingot plan errors`: how far predictions were from what the runs of this machine measured.
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "cli/verbs.h"
#include "plan/track_record.h"

namespace ingot::cli {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const plan::Errors& e) {
  if (e.runs == 0) return nullptr;
  return {{"runs", e.runs}, {"median", e.median}, {"p90", e.p90}, {"bias", e.bias}};
}

std::string cells(const plan::Errors& e) {
  if (e.runs == 0) return fmt::format("{:>5}{:>9}{:>9}{:>9}", 0, "-", "-", "-");
  return fmt::format("{:>5}{:>7.1f} %{:>7.1f} %{:>+7.1f} %", e.runs, 100 * e.median, 100 * e.p90, 100 * e.bias);
}

}  // namespace

int run_plan_errors(const Options& all) {
  const auto cache = base::environment().cache_folder();
  if (cache.empty()) throw base::UsageError("no folder for the record of predictions: set INGOT_CACHE or HOME");
  const auto path = plan::record_path(cache);
  int64_t unreadable = 0;
  const auto groups = plan::errors_of(plan::read_record(path, &unreadable));
  if (unreadable > 0) base::log_warning("{} lines of {} cannot be read and do not count", unreadable, path.string());

  Json json = {{"record", path.string()}, {"unreadable_lines", unreadable}, {"groups", Json::array()}};
  std::string text;
  if (groups.empty()) text = fmt::format("no run has been recorded in {} yet; ingot train adds one line for each\n", path.string());
  std::string machine;
  for (const auto& g : groups) {
    json["groups"].push_back({{"machine", g.machine},
                              {"family", g.family},
                              {"precision", g.precision},
                              {"ranks", g.ranks},
                              {"step", to_json(g.step)},
                              {"calibrated_step", to_json(g.calibrated_step)},
                              {"memory", to_json(g.memory)},
                              {"calibrated_memory", to_json(g.calibrated_memory)}});
    if (g.machine != machine) {
      machine = g.machine;
      text += fmt::format("{}\n{:<14}{:<6}{:>6}  {:<22}{:>5}{:>9}{:>9}{:>9}\n", machine, "family", "", "ranks", "predicted", "runs",
                          "median", "p90", "bias");
    }
    const auto row = [&](bool first, const char* what, const plan::Errors& e) {
      text += fmt::format("{:<14}{:<6}{:>6}  {:<22}{}\n", first ? g.family : "", first ? g.precision : "",
                          first ? std::to_string(g.ranks) : "", what, cells(e));
    };
    row(true, "step time", g.step);
    row(false, "step time, calibrated", g.calibrated_step);
    row(false, "peak memory", g.memory);
    row(false, "peak memory, calibrated", g.calibrated_memory);
  }
  if (!groups.empty())
    text +=
        "median and p90 of |predicted / measured - 1|, bias: median with its sign. Calibrated predictions were made from other runs, "
        "before\n"
        "the run. Step times of runs that other programs disturbed do not count.\n";
  const auto written = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fputs((all.json ? written : text).c_str(), stdout);
  if (!all.plan.output.empty()) base::write_file_atomically(all.plan.output, written);
  return 0;
}

}  // namespace ingot::cli
