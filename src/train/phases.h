// The phases of a recipe laid out over the steps of a run.
#pragma once

#include <vector>

#include "train/config.h"

namespace ingot::train {

struct Phase {
  std::string name;
  int64_t first_step = 0, steps = 0;  // of the run, from 0
  int64_t batch_size = 0;             // behind the ramp
  int64_t ramp_from = 0, ramp_increment = 0, ramp_steps = 0;
  bool resets_optimizer = false;
  double rope_base = 0, peak_lr = 0;
  optim::OptimizerConfig optimizer;  // with this phase's schedule
  data::DataConfig data;             // with this phase's seq_len, sources, and what the phases before drew from them

  int64_t end_step() const { return first_step + steps; }
  /// Sequences of its step `step` (from 0), and of all steps before it.
  int64_t batch_at(int64_t step) const;
  int64_t samples_before(int64_t step) const;
  int64_t tokens_per_step() const { return batch_size * data.seq_len; }
};

/// At least one phase; without train.phases the whole run is one. Looks at no file: where sources have epochs, or data.temperature, weights
/// and what phases draw are those without.
std::vector<Phase> lay_out_phases(const RunConfig& config);
/// With the weights that follow from the sizes of the sources, for who draws samples. Throws FileError and DataError.
std::vector<Phase> lay_out_phases_over_data(const RunConfig& config);

/// The phase that `step` belongs to (the last one when the run is over).
const Phase& phase_at(const std::vector<Phase>& phases, int64_t step);

int64_t total_steps(const std::vector<Phase>& phases);

}  // namespace ingot::train
