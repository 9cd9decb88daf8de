// The settings of group `checkpoint`.
#pragma once

#include "base/settings.h"
#include "checkpoint/save/writer.h"

namespace ingot::checkpoint {

struct CheckpointConfig {
  std::string folder;      // of checkpoints; "" = "checkpoints" in the run directory
  int64_t every = 0;       // steps; 0 = never, not even at the end
  int64_t keep = 3;        // newest checkpoints that stay
  int64_t keep_every = 0;  // steps; every checkpoint at a multiple stays too, 0 = none
  int64_t keep_best = 0;   // and so many with the best train.best_metric
  bool verify = true;      // checksums when loading
  bool strict = true;      // the checkpoint has exactly the run's tensors
  int64_t piece_mib = 8;
  double grace_s = 60;
  int64_t staging_mib = 0;   // memory for the copy that is written while training goes on; 0 = what the rank writes
  int64_t file_mib = 4096;   // longer data files are cut
  int64_t memory_every = 0;  // steps between checkpoints in the memory of the machines; 0 = none
  std::string memory_folder = "/dev/shm", memory_peer = "auto";

  SaveOptions save_options() const;
};

void declare_settings(base::SettingsTable& table, CheckpointConfig& config);

}  // namespace ingot::checkpoint
