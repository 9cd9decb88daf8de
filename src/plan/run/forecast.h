// What is known of a run before it starts: its plan on this machine, for --dry-run and for the numbers that every step line shows beside
// the measured ones.
#pragma once

#include <string>

#include "mesh/mesh.h"
#include "plan/describe.h"
#include "plan/profile.h"
#include "plan/run/record.h"
#include "plan/run/shape.h"
#include "train/config.h"

namespace ingot::plan {

/// One phase of a run.
struct PhasePlan {
  std::string name;
  RunShape shape;
  Plan plan;
};

/// Plans phases of a run for one rank of `mesh`. What one plan traced serves the next. Used by one thread at a time.
class PhasePlanner {
 public:
  /// `program_bytes`: plan/run/program_memory.h. `profile` has to live as long.
  PhasePlanner(const train::RunConfig& config, const mesh::Mesh& mesh, const MachineProfile& profile, int64_t program_bytes);
  /// Of a pipeline the time of the slowest stage and the memory of the one that needs most. `config`: of the same model, precision and
  /// layout.
  PhasePlan plan(const train::RunConfig& config, const train::Phase& phase);

  const models::Model& model() const { return *model_; }  // the whole one
  const mesh::Mesh& mesh() const { return mesh_; }
  const MachineProfile& profile() const { return profile_; }

 private:
  std::unique_ptr<models::Model> model_;
  mesh::Mesh mesh_;
  const MachineProfile& profile_;
  int64_t program_bytes_;
  PipelineFacts pipelines_;
  PlanMaker maker_;
};

/// What one rank of `mesh` needs, by the machine's profile: bytes, and milliseconds of a step of each phase. What the profile does not know
/// stays 0. `program_bytes`: plan/run/program_memory.h. Phases are at their numbers; those that the configuration does not cover are empty.
RunForecast forecast_of(const train::RunConfig& config, const mesh::Mesh& mesh, const MachineProfile& profile, int64_t program_bytes);

/// What is known of a stretch of a run (train/stretches.h) joins what is known of the run.
void add(const RunForecast& stretch, RunForecast& run);

/// The plan of every phase that the configuration covers, as text or JSON, of one rank; nothing of the model is allocated.
std::string dry_run(const train::RunConfig& config, const mesh::Mesh& mesh, const MachineProfile& profile, int64_t program_bytes,
                    bool json);

}  // namespace ingot::plan
