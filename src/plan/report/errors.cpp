#include "plan/report/errors.h"

namespace ingot::plan {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Errors& e) {
  if (e.runs == 0) return nullptr;
  return {{"runs", e.runs}, {"median", e.median}, {"p90", e.p90}, {"bias", e.bias}};
}

std::string cells(const Errors& e) {
  if (e.runs == 0) return fmt::format("{:>5}{:>9}{:>9}{:>9}", 0, "-", "-", "-");
  return fmt::format("{:>5}{:>7.1f} %{:>7.1f} %{:>+7.1f} %", e.runs, 100 * e.median, 100 * e.p90, 100 * e.bias);
}

}  // namespace

Document errors_document(const std::filesystem::path& record, const std::vector<GroupErrors>& groups, int64_t unreadable) {
  Document document;
  auto& [json, text, fits] = document;
  json = {{"record", record.string()}, {"unreadable_lines", unreadable}, {"groups", Json::array()}};
  if (groups.empty()) text = fmt::format("no run has been recorded in {} yet; ingot train adds one line for each\n", record.string());
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
    const auto row = [&](bool first, const char* what, const Errors& e) {
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
        "before\nthe run. Step times of runs that other programs disturbed do not count.\n";
  return document;
}

}  // namespace ingot::plan
