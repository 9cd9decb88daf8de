// What is known of a run before it starts: its plan on this machine, for --dry-run and for the numbers that every step line
// shows beside the measured ones.
#pragma once

#include <string>

#include "mesh/mesh.h"
#include "plan/describe.h"
#include "train/trainer.h"

namespace ingot::cli {

/// Measures the machine if that was not done before (some seconds, once), and predicts. Call before the model is built:
/// memory that is in use then counts as the program's. Never throws for want of a profile: unknown numbers stay 0.
/// What is foretold is one rank's part of it.
train::Forecast forecast_of(const train::RunConfig& config, const mesh::Mesh& mesh);

/// The plan of every phase, as text or JSON, of one rank; nothing of the model is allocated.
std::string dry_run(const train::RunConfig& config, const mesh::Mesh& mesh, bool json);

}  // namespace ingot::cli
