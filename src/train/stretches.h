// Phases that follow one another with one configuration of everything but what train/phases.h moves: layout, microbatch, recomputation and
// the like, which `set` of a phase changes. At a border between two stretches the run saves a checkpoint, and the next one, laid out anew,
// goes on from it: nothing else must know that a run has several.
#pragma once

#include <vector>

#include "train/config.h"

namespace ingot::train {

struct Stretch {
  RunConfig config;  // with what its phases set; covers them alone
  int64_t first_step = 0, end_step = 0;
};

/// In order; at least one. Throws ConfigError for what a phase cannot set.
std::vector<Stretch> stretches_of(const RunConfig& config);

}  // namespace ingot::train
