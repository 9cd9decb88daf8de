// The headline numbers of a run, and the statistics behind them.
#pragma once

#include <limits>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "report/run/run_data.h"

namespace ingot::report {

/// NaNs are left out; NaN when nothing is left. `fraction` in [0, 1]; 0.5 is the median, neighbours are interpolated.
double quantile(std::vector<double> values, double fraction);

/// NaN stands for "not known". Speeds leave out the first step after every start, which pays for warming up.
struct Summary {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  double last_step = kUnknown, planned_steps = kUnknown, tokens = kUnknown;
  double first_loss = kUnknown, final_loss = kUnknown;
  double recent_loss = kUnknown;  // mean over the last 2 % of the steps
  double best_validation = kUnknown, best_validation_step = kUnknown, final_validation = kUnknown;
  double tokens_per_s = kUnknown, step_ms = kUnknown, slow_step_ms = kUnknown;  // medians, and the 95th percentile
  double tflops = kUnknown, mfu = kUnknown;                                     // medians
  double memory_bytes = kUnknown;                                               // maximum
  double predicted_step_ms = kUnknown, predicted_memory_bytes = kUnknown;       // of the last line that has one
  double calibrated_step_ms = kUnknown, calibrated_memory_bytes = kUnknown;     // the same, corrected by earlier runs
  double training_s = kUnknown;                                                 // sum of all step times
  double expert_imbalance = kUnknown;                                           // median over the last tenth

  /// predicted / measured - 1.
  double step_error() const { return predicted_step_ms / step_ms - 1; }
  double memory_error() const { return predicted_memory_bytes / memory_bytes - 1; }
  double calibrated_step_error() const { return calibrated_step_ms / step_ms - 1; }
  double calibrated_memory_error() const { return calibrated_memory_bytes / memory_bytes - 1; }
};

Summary summarise(const Metrics& metrics);

/// What a run of several sources learned of one, in the order of Metrics::sources.
struct SourceSummary {
  std::string name;                                                        // its path, without the folder that all have in common
  double first_loss = Summary::kUnknown, recent_loss = Summary::kUnknown;  // of the first and the last tenth of the run
  double tokens = 0;                                                       // that were predicted
};
std::vector<SourceSummary> summarise_sources(const Metrics& metrics);

/// The headline numbers of all runs as one JSON document, unknown ones as null.
nlohmann::ordered_json summary_json(const std::vector<RunData>& runs);

}  // namespace ingot::report
