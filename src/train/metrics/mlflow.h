// A run's settings and steps on an MLflow server, over its REST API (version 2.0: experiments, runs, log-batch). One thread hands
// steps over; a thread of the logger's own sends them.
//
// Training neither waits for the server nor dies of it: steps wait in a bounded queue, every request has a deadline, what does
// not fit or cannot be sent is dropped and counted.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "train/metrics/scalar.h"
#include "train/metrics/settings_by_name.h"

namespace ingot::train {

struct MlflowOptions {
  std::string url;             // of the tracking server, http://HOST:PORT
  std::string experiment;      // created when the server has none of this name
  std::string run_name;        // shown in MLflow; empty = MLflow's own choice
  double timeout_s = 10;       // of one request, and of all that is left to send at the end
  size_t most_waiting = 4096;  // steps
};

enum class MlflowEnd { finished, failed, killed };

class MlflowLogger {
 public:
  /// Connects in the background. DIR/mlflow.json keeps the id of MLflow's run, so that a start that resumes goes on with it;
  /// `resumes` false begins a new one. `params` are the settings by name. Throws ConfigError when the URL is none.
  MlflowLogger(const std::filesystem::path& run_dir, MlflowOptions options, NamedSettings params, bool resumes);
  /// Sends what waits, within the deadline, and ends MLflow's run; `failed` unless end() said otherwise.
  ~MlflowLogger();

  /// Returns at once.
  void log(StepScalars step);
  /// How MLflow's run ends when the logger does.
  void end(MlflowEnd how);
  /// Steps that were not delivered.
  int64_t dropped() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Throws ConfigError naming the setting unless `url` is http://HOST[:PORT].
void check_mlflow_url(const std::string& url);

}  // namespace ingot::train
