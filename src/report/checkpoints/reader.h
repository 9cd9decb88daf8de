// Reads checkpoints.jsonl (docs/run-directory.md) of any length and any state into what the report draws. Broken lines are counted,
// never fatal. Memory is about 40 bytes per save; what each rank took is kept for at most kMaxSaveStretches × kMaxRankRows cells of each
// kind of save, as the slowest rank and save of a cell.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "report/run/lines.h"

namespace ingot::report {

/// A save that is durable. Seconds and bytes are NaN where the file does not say.
struct SaveTimes {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  double step = kUnknown, bytes = kUnknown;
  double total_s = kUnknown, stall_s = kUnknown, commit_s = kUnknown;
  int64_t ranks = 0, slowest_rank = -1;  // with the largest write_s + sync_s; -1: no rank is known
  // Of the slowest rank. Copying goes on while its blocks are hashed and written, and write_s spans both.
  double plan_s = kUnknown, copy_s = kUnknown, hash_s = kUnknown, write_s = kUnknown, sync_s = kUnknown;
};

struct LoadTimes {
  static constexpr double kUnknown = SaveTimes::kUnknown;
  double step = kUnknown, total_s = kUnknown;
  bool ok = true;
  std::string from, failure;
  int64_t ranks = 0, slowest_rank = -1;  // with the largest read_s + exchange_s
  double plan_s = kUnknown, read_s = kUnknown, exchange_s = kUnknown;
  double wanted_bytes = kUnknown, read_bytes = kUnknown, received_bytes = kUnknown;  // of all ranks together
};

/// Neighbouring saves that share a column of the drawings.
struct SaveStretch {
  double first_step = 0, last_step = 0;  // of the first and the last save; a run that went back may have the smaller one last
  int64_t saves = 0, failed = 0;
  SaveTimes slowest;              // by total_s, of those that did not fail; its step is NaN when all failed
  std::string failure;            // of the first that failed
  bool after_load = false;        // a load stands before one of them
  std::vector<float> gb_per_s{};  // by row of ranks: bytes over (write_s + sync_s) of the slowest; NaN: not known
};

/// All saves to one place.
struct SaveHistory {
  int64_t saves = 0, failed = 0;
  std::vector<double> total_s, stall_s, bytes, gb_per_s;  // of each save that did not fail; gb_per_s is bytes over total_s
  std::vector<SaveStretch> stretches;                     // in the order of the file; at most kMaxSaveStretches
  int64_t ranks_per_row = 1;
  int64_t ranks = 0;  // of the save that had most

  /// The saves in at most `limit` stretches.
  std::vector<SaveStretch> joined(size_t limit) const;
};

struct FailedSave {
  double step = 0;
  bool in_memory = false;
  std::string failure;
};

struct Checkpoints {
  SaveHistory folder, memory;
  int64_t load_count = 0;
  std::vector<LoadTimes> loads;          // the last kMaxLoads
  std::vector<FailedSave> failed_saves;  // the last kMaxFailedSaves
  int64_t lines = 0;
  int64_t unreadable = 0;  // not JSON, not an object, neither save nor load, no usable step, or longer than any line of ours
  int64_t odd = 0;         // with a value that is missing, of the wrong type, or that nothing measured can have

  bool empty() const { return folder.saves == 0 && memory.saves == 0 && load_count == 0; }
};

inline constexpr size_t kMaxSaveStretches = 200, kMaxRankRows = 64, kMaxLoads = 60, kMaxFailedSaves = 5;

class CheckpointsReader {
 public:
  CheckpointsReader();
  CheckpointsReader(CheckpointsReader&&) noexcept;
  ~CheckpointsReader();

  void feed(std::string_view piece);
  /// After the last piece.
  Checkpoints finish(LastLine last = LastLine::counts);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// A whole file at once.
Checkpoints read_checkpoints(std::string_view content);

}  // namespace ingot::report
