// `ingot bench collectives` on ranks that are there: with a bar on the first one, until Ctrl-C.
#include <nlohmann/json.hpp>
#include <optional>

#include "base/process.h"
#include "base/progress.h"
#include "bench/collectives.h"
#include "bench/rank_processes.h"

namespace ingot::bench {

CollectivesRun run_collectives(const CollectiveSweep& sweep, comm::World& world, at::Device device, const resilience::StopSignal& stop) {
  std::optional<base::ProgressBar> bar;
  CollectivesRun run;
  run.results = measure_collectives(sweep, world, device, [&](size_t done, size_t all, const std::string& next) {
    if (world.rank() == 0 && !bar) bar.emplace("collectives", static_cast<int64_t>(all), base::ProgressUnit::count);
    if (bar) bar->update(static_cast<int64_t>(done), next);
    return stop.received() == 0;
  });
  if (bar) bar->finish(stop.received() != 0 ? "stopped; what was measured is kept" : "");
  run.description = fmt::format("{}; {}, {}", world.description(), base::host_name(), base::cpu_name());
  return run;
}

CollectivesRun run_collectives_of_threads(const CollectiveSweep& sweep, int ranks) {
  const resilience::StopSignal stop(kRanksStopNote, resilience::SecondSignal::ends_at_once);
  CollectivesRun run;
  comm::run_ranks(ranks, [&](comm::World& world) {
    auto own = run_collectives(sweep, world, at::kCPU, stop);
    if (world.rank() == 0) run = std::move(own);
  });
  return run;
}

nlohmann::ordered_json to_json(const CollectivesRun& run) {
  auto json = to_json(run.results);
  json["description"] = run.description;
  return json;
}

CollectivesRun collectives_run_from_json(const nlohmann::json& json) { return {collectives_from_json(json), json.at("description")}; }

}  // namespace ingot::bench
