// The settings group `log`: how a run reports on itself.
#pragma once

#include <cstdint>
#include <string>

#include "base/settings.h"

namespace ingot::train {

struct LogConfig {
  int64_t every = 1;
  bool tensorboard = true;
  std::string prometheus;
  std::string mlflow, mlflow_experiment = "ingot", mlflow_run;
  double mlflow_timeout_s = 10;
  std::string trackio, trackio_run, trackio_folder;
  std::string level = "info";
};

void declare_settings(base::SettingsTable& table, LogConfig& config);

/// Refuses addresses and names that cannot be one. Throws ConfigError.
void check(const LogConfig& config);

/// Applies `log.level` to the program's log.
void apply_log_level(const LogConfig& config);

}  // namespace ingot::train
