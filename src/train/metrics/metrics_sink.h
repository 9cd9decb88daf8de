// Where the trainer leaves its numbers: one record per step goes to the log, metrics.jsonl, TensorBoard, Prometheus, MLflow
// and Trackio. Rank 0 owns the only one; it belongs to one thread.
//
// A run never dies of its metrics: a full disk or a taken port is warned about, and the step goes on.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "train/metrics/config.h"
#include "train/metrics/metrics_file.h"
#include "train/metrics/mlflow.h"
#include "train/metrics/prometheus.h"
#include "train/metrics/step_record.h"
#include "train/metrics/tensorboard.h"
#include "train/metrics/trackio.h"

namespace ingot::train {

class MetricsSink {
 public:
  /// `resumed_step` is the last step of the checkpoint that the run goes on from, 0 for a new run. Throws FileError when
  /// metrics.jsonl cannot be opened at all: that is a wrong run directory, best known at once.
  /// `config_toml`: all settings of the run, for MLflow and Trackio; `run_id` is that of run.json.
  MetricsSink(const std::filesystem::path& run_dir, const LogConfig& config, int64_t resumed_step, const std::string& config_toml = "",
              const std::string& run_id = "");

  void record(StepRecord record);
  /// How the run ended, for MLflow; without it, failed.
  void end(MlflowEnd how);
  /// A save or load that has ended: a line of checkpoints.jsonl, and part of the next step's line.
  void record_checkpoint(nlohmann::ordered_json record);

 private:
  void write_tensorboard(const StepRecord& record);
  void write_failed(const char* what);

  std::filesystem::path run_dir_;
  LogConfig config_;
  MetricsFile file_;
  AppendFile checkpoints_;
  std::vector<nlohmann::ordered_json> new_checkpoints_;  // since the last step
  std::optional<TensorBoardWriter> tensorboard_;
  std::optional<PrometheusEndpoint> prometheus_;
  std::optional<MlflowLogger> mlflow_;
  std::optional<TrackioWriter> trackio_;
  bool first_ = true, after_resume_ = false, warned_ = false;
};

}  // namespace ingot::train
