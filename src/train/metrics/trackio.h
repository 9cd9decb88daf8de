// A run's settings and steps in a project of Trackio: rows of the SQLite database that Trackio's own dashboard and command line read.
// The tables are those of Trackio 0.24 and later (huggingface.co/docs/trackio/storage_schema); what else a database of Trackio has,
// Trackio adds when it opens it.
//
// Training neither waits for the database nor dies of it: a thread of the writer's own fills it from a bounded queue, waits a few
// seconds at most for others who hold it, and counts what could not be written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "train/metrics/scalar.h"
#include "train/metrics/settings_by_name.h"

namespace ingot::train {

struct TrackioOptions {
  std::string project;           // the database is FOLDER/PROJECT.db
  std::filesystem::path folder;  // made if need be
  std::string run_id;            // tells the run's rows from others'
  std::string run_name;          // of a new run; one that resumes keeps what Trackio calls it by then
  double timeout_s = 5;          // for others to let go of the database
  size_t most_waiting = 4096;    // steps
};

class TrackioWriter {
 public:
  /// Opens the database in the background. Rows of the run's steps after `resumed_step` (0: all) are deleted: they will be done again.
  TrackioWriter(TrackioOptions options, NamedSettings settings, int64_t resumed_step);
  /// Writes what waits.
  ~TrackioWriter();

  /// Returns at once.
  void log(StepScalars step);
  /// Steps that were not written.
  int64_t dropped() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Where Trackio itself looks: $TRACKIO_DIR, else trackio/ in $HF_HOME, else in ~/.cache/huggingface. Throws ConfigError when none is set.
std::filesystem::path trackio_home();

/// Throws ConfigError naming the setting unless Trackio would keep a project of this name in a file of this name.
void check_trackio_project(const std::string& project);

}  // namespace ingot::train
