// Keeps a second job out of a run directory: both would write the same metrics, and commit checkpoints of the same steps.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/files.h"
#include "checkpoint/storage/storage.h"

namespace ingot::train {

/// Holds folders for one process until it ends, in whatever way: a lock on the file ".lock" in each, which says who has it. Where the file
/// system has no locks a warning says so. Of what killed processes were writing there it removes what they had not finished. Folders that
/// it made and that nobody has put anything into go with it. A folder of another storage is locked as that does it (Storage::lock_writers).
class RunLock {
 public:
  /// Of nothing.
  RunLock() = default;
  /// Makes the folders that are missing. Waits up to `patience` for a holder that ends (a job that is started again meets the one before
  /// it). Throws ConfigError that names the holder.
  RunLock(const std::vector<std::filesystem::path>& folders, const std::string& version, std::chrono::duration<double> patience,
          const checkpoint::StorageOf& storage_of = checkpoint::local_storage_of);

  RunLock(RunLock&&) = default;
  RunLock& operator=(RunLock&&) = default;
  ~RunLock();

 private:
  std::vector<base::FileLock> locks_;
  std::vector<std::shared_ptr<void>> storage_locks_;
  std::vector<std::filesystem::path> made_;  // each behind the one that it lies in
};

}  // namespace ingot::train
