#include "checkpoint/config.h"

namespace ingot::checkpoint {

SaveOptions CheckpointConfig::save_options() const {
  SaveOptions options;
  options.retention = {keep, keep_every, keep_best};
  options.piece_limit_bytes = piece_mib << 20;
  options.grace_s = grace_s;
  options.file_limit_bytes = file_mib << 20;
  options.staging_bytes = staging_mib > 0 ? staging_mib << 20 : INT64_MAX / 2;
  options.refuse_nonfinite = true;
  return options;
}

void declare_settings(base::SettingsTable& table, CheckpointConfig& config) {
  table.add("checkpoint.folder", config.folder,
            "where checkpoints go: a folder that all ranks see, or s3://bucket/prefix; empty = checkpoints in the run directory");
  table.add("checkpoint.every", config.every, base::at_least(0),
            "steps between checkpoints, besides the one at the end or at a signal; 0 saves none at all");
  table.add("checkpoint.keep", config.keep, base::at_least(1), "how many of the newest checkpoints stay");
  table.add("checkpoint.keep_every", config.keep_every, base::at_least(0),
            "checkpoints whose step is a multiple of this stay as well; 0 keeps no others");
  table.add(
      "checkpoint.keep_best", config.keep_best, base::at_least(0),
      "so many checkpoints with the best train.best_metric stay as well; only those of a step that was validated, or evaluated, have one");
  table.add("checkpoint.strict", config.strict,
            "resume only from a checkpoint with exactly this run's tensors; false: missing ones keep their initial values, others are "
            "left out, dtypes are converted");
  table.add("checkpoint.verify", config.verify, "compare checksums of everything that is loaded");
  table.add("checkpoint.piece_mib", config.piece_mib, {1, 4096},
            "longest piece of a tensor in MiB: the unit of checksums and of partial loads");
  table.add("checkpoint.file_mib", config.file_mib, {1, 1 << 20}, "longest data file in MiB; a rank that has more writes several");
  table.add(
      "checkpoint.staging_mib", config.staging_mib, {0, 1 << 30},
      "memory of a rank, in MiB, for the copy that is written while training goes on; 0 = as much as it writes, with less training waits "
      "for the storage");
  table.add("checkpoint.memory_every", config.memory_every, base::at_least(0),
            "steps between checkpoints in the memory of the machines, from which a run that is restarted goes on; 0 = none");
  table.add("checkpoint.memory_folder", config.memory_folder, "folder of a file system in memory, on every machine");
  table.add("checkpoint.memory_peer", config.memory_peer, std::vector<std::string>{"auto", "always", "never"},
            "whether a rank keeps a copy of another rank's part: of one on another machine, where there are several (auto); always; never");
  table.add("checkpoint.grace_s", config.grace_s, {0, 1e9}, "seconds before the unfinished save of a dead process is removed");
}

}  // namespace ingot::checkpoint
