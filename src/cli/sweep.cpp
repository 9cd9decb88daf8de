// `ingot sweep`: many short runs over some settings, and which is best.
#include "cli/verb.h"

namespace ingot::cli {

struct SweepOptions {
  std::string file, dir;
  bool dry_run = false;
};

#ifndef INGOT_COMPUTES
void add_sweep(Flags& flags) {
  const auto values = std::make_shared<SweepOptions>();
  auto& o = *values;
  auto& verb = flags.verb("sweep", "try settings in many short runs side by side: a grid, a random search, successive halving", values);
  verb.add_option("file", o.file, "what is tried, TOML (docs/sweeps.md; configs/sweeps/ has some)")->required();
  verb.add_option("--dir", o.dir, "where runs and results go, and what the same command goes on with (default sweeps/<name of the file>)");
  verb.add_flag("--dry-run", o.dry_run, "check every run's configuration and list them; train nothing");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include "cli/input_file.h"
#include "sweep/sweep.h"

namespace ingot::cli {

int run_sweep(const Call& call) {
  const auto& o = call.options<SweepOptions>();
  require_file(o.file);
  return sweep::run({.file = o.file, .folder = o.dir, .dry_run = o.dry_run, .json = call.json});
}

}  // namespace ingot::cli
#endif
