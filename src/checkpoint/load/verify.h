// Checking a checkpoint without loading it: every byte of every file is read and compared. Damage is collected rather than
// thrown, so that one look names every damaged file and tensor. Functions may be called by many threads.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/format/metadata.h"
#include "checkpoint/storage/storage.h"

namespace ingot::checkpoint {

struct Damage {
  std::string file;         // name within the checkpoint
  std::string tensor;       // empty when no tensor is hit
  std::string extra;        // likewise
  std::string description;  // what is wrong, with file and byte range
};

struct VerifySummary {
  int64_t step = -1;  // -1 when the metadata cannot be read
  int64_t files = 0, tensors = 0, pieces = 0, extras = 0;
  int64_t checked_bytes = 0;
  double seconds = 0;
  std::vector<Damage> damage;
  bool sound() const { return damage.empty(); }
};

/// Adds to `summary` what is wrong with one file of a checkpoint, which lies at `file`; `ranges` are those of ranges_of(metadata) for it.
void verify_file(const fs::path& file, const Metadata& metadata, size_t number, const std::vector<Range>& ranges, const Storage& storage,
                 VerifySummary& summary);

/// Throws CheckpointError only when `path` is not a folder that can be looked at.
VerifySummary verify(const fs::path& path, const Storage& storage = local_storage());

}  // namespace ingot::checkpoint
