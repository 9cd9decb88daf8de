// What a run keeps in a checkpoint, and how it comes back: full-precision weights, optimizer moments, where it stands in the
// data, and its resolved configuration. Random numbers are pure functions of (seed, name, index), so their state is the
// seeds in the configuration.
#pragma once

#include <filesystem>
#include <string>

#include "checkpoint/reader.h"
#include "checkpoint/writer.h"
#include "models/model.h"
#include "optim/optimizer.h"

namespace ingot::train {

/// Where a run stands; everything else follows from the configuration.
struct Progress {
  int64_t step = 0;    // steps done
  int64_t tokens = 0;  // trained on
  std::string to_json() const;
  static Progress from_json(const std::string& text, const std::string& origin);  // throws CheckpointError
};

struct RunState {
  models::Model& model;
  optim::Optimizer& optimizer;
};

/// Saves a checkpoint of step progress.step under `folder`. Throws CheckpointError or, when a weight is NaN or Inf, NumericError
/// naming it: such a state is never written.
checkpoint::SaveReport save_run(const std::filesystem::path& folder, RunState state, const Progress& progress,
                                const std::string& config_toml, const std::string& data_state, const checkpoint::SaveOptions& options);

/// Restores weights and moments; everything is read and checked before the first value is overwritten. Throws CheckpointError
/// when the checkpoint is damaged, or does not have this model's tensors.
Progress load_run(const checkpoint::Reader& reader, RunState state);

/// Fills the weights alone (for generation and export) from their full-precision values.
void load_weights(const checkpoint::Reader& reader, models::Model& model);

/// "config.toml" of the checkpoint.
std::string config_of(const checkpoint::Reader& reader);

}  // namespace ingot::train
