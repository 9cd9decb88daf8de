// What the storage behind a folder does: sequential and random reads and writes and small files, by one and by several writers at once,
// through the page cache and past it. Files of its own, which it removes; whatever was written counts as written when fsync returns.
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "bench/scratch_folder.h"
#include "plan/profile.h"
#include "resilience/stop_signal.h"

namespace ingot::bench {

struct StorageOptions {
  fs::path folder = ".";                             // a folder of its own is made below it
  int64_t size_bytes = int64_t{256} << 20;           // of all writers' files together
  std::vector<int> writers = {1, 4, 16};             // threads at work at once, each on a file of its own when it writes
  std::vector<int64_t> block_bytes = {4096, 65536};  // of random reads and writes; multiples of 4096
  double seconds = 0.5;                              // after which a measurement ends, the fsync that follows apart
  double budget_s = 0;                               // after which nothing new is begun; 0 = no limit

  static constexpr int64_t kSequentialBytes = int64_t{1} << 20;  // of a sequential read or write
  static constexpr int64_t kSmallFileBytes = 4096;
  static constexpr int64_t kMostSmallFiles = 4096;
  /// Throws UsageError.
  void check() const;
  /// Room that the folder must have.
  int64_t needed_bytes() const;
};

struct StorageResult {
  plan::StorageRate rate;
  int64_t operations = 0;
  double seconds = 0;  // from the common start to the end of the last writer, fsync included
  double sync_s = 0;   // of these the longest final fsync
  /// Of reads through the page cache: the share of the file that the cache held although it had been told to drop it. Above 0 the rate
  /// is in part the memory's.
  double cached_share = 0;
};

struct StorageReport {
  std::string folder, folder_type;  // the latter as mount calls it
  int64_t size_bytes = 0;
  std::string direct_refusal;  // why nothing could be measured past the page cache; empty when it was
  bool complete = true;
  std::vector<StorageResult> results;

  /// Highest rate of random reads of `block_bytes`, past the page cache if that was measured; null when none was.
  const StorageResult* best_random_read(int64_t block_bytes) const;
};

/// What to call before each measurement; false ends the whole. `done` of `all` are behind.
using StorageProgress = std::function<void(size_t done, size_t all, const std::string& next)>;

/// Measures in a fresh folder, which is gone afterwards. `is_stopped` is asked by several threads; a measurement that it interrupts is
/// dropped, those before it stay. Throws UsageError when there is too little room, FileError when the file system fails.
StorageReport measure_storage(const StorageOptions& options, const StorageProgress& progress, const std::function<bool()>& is_stopped);

/// The same with a progress bar, until `stop` received a signal.
StorageReport watch_storage(const StorageOptions& options, const resilience::StopSignal& stop);
inline constexpr const char* kStorageStopNote = "\nstopping and removing the files; what was measured is kept\n";

/// A few seconds of it in `folder`, for a machine profile, ten at most. Where the folder has no room or cannot be written to, that is
/// logged and nothing comes back.
std::vector<plan::StorageRate> storage_rates(const std::string& folder);

/// The value that a share `quantile` of all values does not exceed (nearest rank); 0 of nothing.
double quantile_of(std::vector<double>& values, double quantile);

std::string to_table(const StorageReport& report);
nlohmann::ordered_json to_json(const StorageReport& report);

}  // namespace ingot::bench
