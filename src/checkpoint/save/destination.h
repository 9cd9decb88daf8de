// Where a save goes: what the ranks of a team do together before and after each of them has written its files. All make the same calls,
// from the thread that saves, and what fails on one of them is thrown by all.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/metadata.h"
#include "checkpoint/storage/storage.h"

namespace ingot::checkpoint {

/// What all ranks have written.
struct Written {
  Metadata metadata;
  std::vector<uint32_t> writers;  // of each file the rank that wrote it
  int64_t metadata_bytes = 0;     // told by the destination
};

class Destination {
 public:
  virtual ~Destination() = default;
  virtual const Storage& storage() const = 0;
  /// Where a checkpoint of that step is once it is visible.
  virtual fs::path path_of(int64_t step) const = 0;
  virtual std::string name_of_file(const CheckpointId& id, uint32_t file) const = 0;

  struct Place {
    CheckpointId id;
    fs::path folder;  // where this rank writes its files
  };
  /// Makes place for a checkpoint; `id`: random unless given.
  virtual Place begin(int64_t step, const std::optional<CheckpointId>& id) = 0;
  /// Makes it visible, when it is durable as far as this destination can. `written` is called on rank 0 and may throw. After an exception
  /// nothing of it is visible.
  virtual void commit(const std::function<Written&()>& written) = 0;
  /// After a commit: removes what has to go. Failures are only logged.
  virtual void clean() = 0;
  /// Instead of a commit, or after one that failed: nothing of the new checkpoint remains.
  virtual void abandon() = 0;
};

}  // namespace ingot::checkpoint
