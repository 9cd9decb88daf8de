#include "train/metrics/config.h"

#include "base/error.h"
#include "base/log.h"
#include "train/metrics/mlflow.h"
#include "train/metrics/prometheus.h"
#include "train/metrics/trackio.h"

namespace ingot::train {

void declare_settings(base::SettingsTable& table, LogConfig& config) {
  table.add("log.every", config.every, base::at_least(1), "steps between two step lines on the terminal; metrics.jsonl has every step");
  table.add("log.tensorboard", config.tensorboard, "write a TensorBoard event file into the run directory");
  table.add("log.prometheus", config.prometheus, "HOST:PORT on which rank 0 serves /metrics, as in 127.0.0.1:9400; empty = off");
  table.add("log.mlflow", config.mlflow, "http://HOST:PORT of an MLflow server to which rank 0 sends settings and metrics; empty = off");
  table.add("log.mlflow_experiment", config.mlflow_experiment, "MLflow's experiment; made when there is none of that name");
  table.add("log.mlflow_run", config.mlflow_run, "name of the run in MLflow; empty = MLflow's choice");
  table.add("log.mlflow_timeout_s", config.mlflow_timeout_s, base::NumberRange{0.1, 600},
            "seconds for a request to MLflow, and for what is left to send at the end; training does not wait for the others");
  table.add("log.trackio", config.trackio, "project of Trackio into whose database rank 0 writes settings and metrics; empty = off");
  table.add("log.trackio_run", config.trackio_run, "name of the run in Trackio; empty = the run directory's name");
  table.add("log.trackio_folder", config.trackio_folder,
            "where Trackio's databases lie; empty = where Trackio looks: $TRACKIO_DIR, $HF_HOME/trackio, ~/.cache/huggingface/trackio");
  table.add("log.level", config.level, {"debug", "info", "warning", "error"}, "the least serious message that is logged");
}

void check(const LogConfig& config) {
  if (!config.prometheus.empty()) check_prometheus_address(config.prometheus);
  if (!config.trackio.empty()) check_trackio_project(config.trackio);
  if (!config.trackio.empty() && config.trackio_folder.empty()) trackio_home();  // throws when there is none
  if (config.mlflow.empty()) return;
  check_mlflow_url(config.mlflow);
  if (config.mlflow_experiment.empty()) throw base::ConfigError("log.mlflow_experiment is empty; MLflow needs a name");
}

void apply_log_level(const LogConfig& config) {
  using base::LogLevel;
  base::set_log_level(config.level == "debug"     ? LogLevel::debug
                      : config.level == "warning" ? LogLevel::warning
                      : config.level == "error"   ? LogLevel::error
                                                  : LogLevel::info);
}

}  // namespace ingot::train
