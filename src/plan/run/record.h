// Runs and the record of predictions (plan/track_record.h): how a run is found again, what earlier ones make of its prediction, and what it
// adds to the record.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "mesh/mesh.h"
#include "plan/profile.h"
#include "plan/run_shape.h"
#include "plan/track_record.h"
#include "train/trainer.h"

namespace ingot::plan {

/// What a run is recorded as, nothing measured yet: phase by phase what was predicted of it, and what earlier runs of its kind make of
/// that.
struct PhaseForecast {
  std::string phase;
  Outcome outcome;
  Calibration calibration;
  bool has_full_rows = true;  // else steps are shorter than predicted, and say nothing of others
};
struct RunForecast {
  train::Forecast numbers;
  std::vector<PhaseForecast> phases;
};

/// How a run or plan is found again among others.
Outcome identity_of(const train::RunConfig& config, const mesh::Mesh& mesh, const models::Model& model, const RunShape& shape,
                    const MachineProfile& profile);
/// Takes what was predicted into `outcome`, corrected as the record of this machine says.
Calibration calibrate(Outcome& outcome, double step_s, int64_t memory_bytes, const std::vector<Outcome>& record);
/// The record of this machine; empty when there is none or it cannot be read.
std::vector<Outcome> known_outcomes();
/// At the end of a run, on its first rank: says how the predictions fared, and adds that to the record and to DIR/predictions.json. Phases
/// of which too few steps were measured are left out. Never throws.
void keep_outcomes(const RunForecast& forecast, const train::Measured& measured, double foreign_load, const std::filesystem::path& run_dir);

}  // namespace ingot::plan
