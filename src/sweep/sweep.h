// `ingot sweep`: many short runs side by side, each a process of its own, and what came of them.
#pragma once

#include <filesystem>

#include "sweep/definition.h"

namespace ingot::sweep {

struct Options {
  std::filesystem::path file;
  std::filesystem::path folder;  // of the sweep; empty = sweeps/<name of the file>
  bool dry_run = false, json = false;
};

/// Runs what sweep.jsonl in the folder has no result of, best rungs last, and writes a page. A signal ends the runs at their next step; the
/// same call goes on. Returns the exit status: 0 when a run came to its end. Throws ConfigError and UsageError before anything runs.
int run(const Options& options);

}  // namespace ingot::sweep
