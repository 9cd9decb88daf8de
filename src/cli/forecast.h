// What is known of a run before it starts: its plan on this machine, for --dry-run and for the numbers that every step line
// shows beside the measured ones.
#pragma once

#include <array>
#include <map>
#include <string>
#include <vector>

#include "bench/suite.h"
#include "mesh/mesh.h"
#include "parallel/pipeline_schedule.h"
#include "plan/describe.h"
#include "plan/track_record.h"
#include "train/trainer.h"

namespace ingot::cli {

/// Resident memory with everything loaded that a run needs besides its tensors: libraries, threads, their work areas. Call before anything
/// of the run is built.
int64_t program_bytes(const train::RunConfig& config);

/// What a run is recorded as, nothing measured yet: phase by phase what was predicted of it, and what earlier runs of its kind make of
/// that.
struct PhaseForecast {
  std::string phase;
  plan::Outcome outcome;
  plan::Calibration calibration;
};
struct RunForecast {
  train::Forecast numbers;
  std::vector<PhaseForecast> phases;
};

/// Called by all ranks of the run. They measure the machine if that was not done before (some seconds, once), and the first one predicts
/// what one rank of `mesh` needs; the others' forecast is empty. Never throws for want of a profile: unknown numbers stay 0.
RunForecast forecast_of(const train::RunConfig& config, const mesh::Mesh& mesh, const bench::Company& company, int64_t program_bytes);

/// How a run or plan is found again among others.
plan::Outcome identity_of(const train::RunConfig& config, const mesh::Mesh& mesh, const models::Model& model, const plan::RunShape& shape,
                          const plan::MachineProfile& profile);
/// Takes what was predicted into `outcome`, corrected as the record of this machine says.
plan::Calibration calibrate(plan::Outcome& outcome, double step_s, int64_t memory_bytes, const std::vector<plan::Outcome>& record);
/// The record of this machine; empty when there is none or it cannot be read.
std::vector<plan::Outcome> known_outcomes();
/// At the end of a run, on its first rank: says how the predictions fared, and adds that to the record and to DIR/predictions.json. Phases
/// of which too few steps were measured are left out. Never throws.
void keep_outcomes(const RunForecast& forecast, const train::Measured& measured, double foreign_load, const std::filesystem::path& run_dir);

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

/// Lengths of the documents in the first rows that a phase trains on, as far as attention tells them apart. Empty when it does not, or when
/// the data is not there.
std::vector<int64_t> documents_of(const train::Phase& phase);

/// What one rank of `mesh` does of a phase.
plan::RunShape shape_of(const train::RunConfig& config, const train::Phase& phase, const mesh::Mesh& mesh, PipelineFacts& pipelines);

/// What a rank needs of its machine's memory besides: for checkpoints, and, on a CPU, to exchange through.
void add_host_memory(const train::RunConfig& config, const mesh::Mesh& mesh, const parallel::Layout& layout, plan::RunShape& shape);

/// The plan of every phase, as text or JSON, of one rank; nothing of the model is allocated.
std::string dry_run(const train::RunConfig& config, const mesh::Mesh& mesh, bool json);

}  // namespace ingot::cli
