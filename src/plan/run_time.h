// What a whole run takes: its steps, and what comes between them. docs/prediction.md says how good that is.
#pragma once

#include <cstdint>

#include "plan/goodput.h"
#include "plan/profile.h"

namespace ingot::plan {

/// 0 = there is none, or it is not known.
struct RunPlan {
  int64_t steps = 0;
  double step_s = 0;
  double load_s = 0;  // that storage takes to read the data of a step, while the step before is computed
  int64_t validations = 0;
  double validation_s = 0;  // of one of them
  int64_t save_every = 0;   // steps
  double save_work_s = 0;   // that a save takes from the steps: copying and hashing on the cores that train
  double save_write_s = 0;  // until it is durable; the next one waits for that
  double device_mtbf_h = 0, restart_s = 0;
  int64_t devices = 1;
};

/// Seconds of a run.
struct RunTime {
  double steps_s = 0, data_s = 0, validation_s = 0, saves_s = 0, failures_s = 0;
  int64_t saves = 0;
  double total_s() const { return steps_s + data_s + validation_s + saves_s + failures_s; }
  /// The share that goes into steps whose work is kept.
  double goodput() const { return total_s() > 0 ? steps_s / total_s() : 0; }
};

/// One save more at the end. Failures as goodput.h has them, with the mean of what lies between two saves as work; infinite when the run
/// would not come forward. Throws ConfigError for negative values.
RunTime predict_run_time(const RunPlan& plan);

/// Seconds that a machine's cores need to copy and hash what a save writes, by the profile's stream rates: a copy reads and writes each
/// byte, a hash reads it. 0 when the profile has no stream rates.
double save_work_s(double saved_bytes, const MachineProfile& profile);

/// Seconds until so much is written as checkpoints are, by the best rate in the profile. 0 when it was not measured.
double save_write_s(double saved_bytes, const MachineProfile& profile);

/// Seconds to read so many pages of 4 KiB at random places, by the best rate in the profile: past the page cache if that was measured. 0
/// when it was not measured.
double random_reads_s(double pages, const MachineProfile& profile);

}  // namespace ingot::plan
