// Where the time of training steps goes, measured from within a run of the trainer's own.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/work_watch.h"
#include "mesh/groups.h"
#include "plan/time.h"
#include "resilience/stop_signal.h"
#include "train/config.h"

namespace ingot::bench {

struct IterationReport {
  int64_t steps = 0;                         // that were watched
  WorkTimes times;                           // of all of them
  std::vector<double> watched_ms, plain_ms;  // each step's wall time, with the watch and without
  int64_t tokens_per_step = 0;
  // Of several ranks: this rank's share is above, the least and most of any rank's step here, by kind.
  std::vector<double> least_ms, most_ms;
  int64_t ranks = 1;

  double step_ms() const { return times.wall_s * 1e3 / static_cast<double>(steps); }
  double ms(WorkKind kind) const { return times.of(kind) * 1e3 / static_cast<double>(steps); }
  double ms(WorkKind kind, WorkPass pass) const { return times.of(kind, pass) * 1e3 / static_cast<double>(steps); }
  /// How much longer a watched step takes than one that is not, by their medians; 0.02 = 2 %.
  double overhead() const;
};

/// Trains the configuration's first phase for some steps in a run directory of its own that is gone afterwards, without checkpoints and
/// validation: two to warm up, then `steps` with the watch and as many without, in turn. `progress` hears of each step before it begins.
/// All ranks of `groups` call it; rank 0's report knows of the others. Once stopped the report has the steps that were taken, maybe none.
IterationReport measure_iteration(train::RunConfig config, int64_t steps, mesh::Groups& groups, const resilience::StopSignal& stop,
                                  const std::function<void(int64_t done, int64_t all)>& progress);

struct IterationRun {
  IterationReport report;
  std::map<WorkKind, double> predicted_ms;  // of a step; empty where nothing is predicted
  std::string heading;                      // model, batch, machine, layout; two lines
  int threads = 1;                          // of this rank
};

/// Joins the ranks that a launcher started, predicts their step and measures it, with a bar on the first rank; nothing on the others. Only
/// the first phase counts. Made-up tokens stand for the configuration's data where that is asked. Throws ConfigError.
std::optional<IterationRun> run_iteration(train::RunConfig config, int64_t steps, bool has_random_data);

/// `predicted`: ms of a step by kind; may be empty.
std::string to_table(const IterationReport& report, const std::map<WorkKind, double>& predicted);
nlohmann::ordered_json to_json(const IterationReport& report, const std::map<WorkKind, double>& predicted);
/// The last watched step for chrome://tracing or ui.perfetto.dev: every operator and scope, each waited for.
nlohmann::ordered_json chrome_trace(const IterationReport& report);

}  // namespace ingot::bench
