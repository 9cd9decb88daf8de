// What is known of a run before it starts: its plan on this machine, for --dry-run and for the numbers that every step line
// shows beside the measured ones.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "parallel/pipeline_schedule.h"
#include "plan/describe.h"
#include "train/trainer.h"

namespace ingot::cli {

/// Measures the machine if that was not done before (some seconds, once), and predicts. Call before the model is built:
/// memory that is in use then counts as the program's. Never throws for want of a profile: unknown numbers stay 0.
/// What is foretold is one rank's part of it.
train::Forecast forecast_of(const train::RunConfig& config, const mesh::Mesh& mesh);

/// How a pipeline of such a shape keeps a stage waiting, as parallel::simulate() plays it; played once for each shape.
class PipelineFacts {
 public:
  struct Facts {
    std::vector<int> kept;  // microbatches, by stage
    double bubble = 0;
  };
  const Facts& of(const parallel::PipelineShape& shape);

 private:
  std::map<std::array<int, 4>, Facts> known_;
};

/// What one rank of `mesh` does of a phase.
plan::RunShape shape_of(const train::RunConfig& config, const train::Phase& phase, const mesh::Mesh& mesh, PipelineFacts& pipelines);

/// The plan of every phase, as text or JSON, of one rank; nothing of the model is allocated.
std::string dry_run(const train::RunConfig& config, const mesh::Mesh& mesh, bool json);

}  // namespace ingot::cli
