// How predictions fared in the runs of this machine. Every run adds one line of JSON per phase to <cache>/predictions.jsonl. What is
// predicted from measurements of the machine alone stays as it is (raw); what earlier runs would make of it (calibrated) stands beside it,
// with errors of its own: a factor that was fitted to runs says nothing about how good the model is.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ingot::plan {

/// Nine of ten predictions without calibration were off by less (benchmarks/prediction_accuracy_xeon-avx512-2cores_2026-11-23.md).
inline constexpr double kUsualStepError = 0.13, kUsualMemoryError = 0.051;

/// A phase of a run: what it was, what was said of it and what it was. 0: not predicted, or not measured.
struct Outcome {
  std::string date, run, version;         // ISO 8601, UTC; the run's id; of the program
  std::string machine;                    // file name of its profile: host, processor, threads, ranks side by side
  std::string family, precision, layout;  // layout: the mesh, as run.json has it
  std::string shape;                      // whatever else decides time and memory, as one text
  int64_t ranks = 1;
  int64_t steps = 0;                                                                           // that were measured
  double predicted_step_s = 0, calibrated_step_s = 0, measured_step_s = 0;                     // of one step, the median
  int64_t predicted_memory_bytes = 0, calibrated_memory_bytes = 0, measured_memory_bytes = 0;  // peak of the rank that needed most
  double foreign_load = 0;  // share of the cores that others used meanwhile

  bool has_step() const { return predicted_step_s > 0 && measured_step_s > 0; }
  bool has_memory() const { return predicted_memory_bytes > 0 && measured_memory_bytes > 0; }
  /// Same machine, ranks, family and precision.
  bool is_kin(const Outcome& other) const;
  /// And everything else alike, too.
  bool is_same_run(const Outcome& other) const;
};

/// What measured / predicted was in runs that are kin: its median, and where four fifths of them lie (10th and 90th percentile).
struct Quotients {
  int64_t runs = 0;
  double median = 1, low = 1, high = 1;
  explicit operator bool() const { return runs >= kFewest; }
  static constexpr int64_t kFewest = 3;
};
struct Calibration {
  Quotients step, memory;
};

/// From outcomes of the same version that are kin to `run`: of runs that are alike the last one counts, and none that is like `run` itself,
/// so that a calibrated prediction is of something not seen before. Not used: those that others disturbed (more than a tenth of the cores).
Calibration calibration_for(const Outcome& run, const std::vector<Outcome>& record);

/// The last measurement of a run like this one; null when there is none.
const Outcome* last_like(const Outcome& run, const std::vector<Outcome>& record);

/// Errors of one group of runs, as |predicted / measured - 1|.
struct Errors {
  int64_t runs = 0;
  double median = 0, p90 = 0, bias = 0;  // bias: median with its sign
};
struct GroupErrors {
  std::string family, precision;
  int64_t ranks = 1;
  std::string machine;
  Errors step, calibrated_step, memory, calibrated_memory;  // of calibrated ones only runs that were calibrated count
};
std::vector<GroupErrors> errors_of(const std::vector<Outcome>& record);

std::filesystem::path record_path(const std::filesystem::path& cache_folder);

/// The newest mebibyte of it, oldest first. Lines that are not outcomes are passed over and counted in `unreadable`. Empty when there is no
/// such file.
std::vector<Outcome> read_record(const std::filesystem::path& path, int64_t* unreadable = nullptr);

/// One write to the end of the file, so that runs that end at the same time do not mix. Throws FileError.
void append_to_record(const std::filesystem::path& path, const Outcome& outcome);

/// What is to be expected, with how far off such predictions were: of this machine's own runs where there are enough, else of the runs of
/// benchmarks/prediction_accuracy_*.md. `last`: the run that was like this one, or null.
std::string describe(const Outcome& predicted, const Calibration& calibration, const Outcome* last);
nlohmann::ordered_json to_json(const Outcome& predicted, const Calibration& calibration, const Outcome* last);

/// One line, without its end.
std::string to_json_line(const Outcome& outcome);
/// Throws ProfileError.
Outcome outcome_from_json(const std::string& line, const std::string& origin);

}  // namespace ingot::plan
