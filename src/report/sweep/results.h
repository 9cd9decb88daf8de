// What a sweep has found so far: sweep.jsonl in its folder (docs/sweeps.md), a line for what the sweep is and one for every run that came
// to the end of a rung.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ingot::report {

enum class TrialStatus { done, diverged, failed };
/// "done", "diverged", "failed".
std::string name_of(TrialStatus status);

/// A run that came to the end of a rung.
struct TrialResult {
  std::string trial;  // "007", its folder in runs/
  int64_t rung = 0, step = 0;
  TrialStatus status = TrialStatus::done;
  double metric = 0;  // meaningful where done
  double seconds = 0;
  std::string message;  // of one that failed
};

struct SweepResults {
  std::string definition;                                                // as the first line says
  std::string metric;                                                    // its name
  std::vector<std::pair<std::string, std::vector<std::string>>> trials;  // name, and the value of each setting
  std::vector<std::string> settings;                                     // swept
  std::vector<int64_t> rungs;                                            // step at which each ends
  std::vector<TrialResult> results;                                      // in the order in which they came

  /// The last that is known of a trial; null before its first.
  const TrialResult* last_of(const std::string& trial) const;
  /// Of a trial at a rung; null when it has not come there.
  const TrialResult* at(const std::string& trial, int64_t rung) const;
  /// Trials that are done, best first: those that came further, then those of a smaller metric.
  std::vector<const TrialResult*> ranking() const;
};

/// Nothing where the folder holds no sweep. Throws DataError for a file that is not one; torn lines are left out.
std::optional<SweepResults> read_sweep(const std::filesystem::path& folder);

/// The first line of a sweep, and that of a result.
std::string first_line(const SweepResults& sweep);
std::string line_of(const TrialResult& result);

}  // namespace ingot::report
