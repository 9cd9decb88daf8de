// Saving a checkpoint: everything is written into a hidden folder, made durable, and becomes visible by one rename. Killed at
// any moment, the folder holds the old checkpoints and, complete or not at all, the new one.
// `save` may run on any thread; the data it is given must not change meanwhile.
//
// Many ranks save together: each writes one data file into the hidden folder, which all must see (a shared file system);
// rank 0 makes the folder, merges what the others report, validates, writes the metadata and publishes.
#pragma once

#include <map>
#include <optional>

#include "checkpoint/folder.h"
#include "checkpoint/metadata.h"
#include "checkpoint/team.h"

namespace ingot::checkpoint {

/// A part of a tensor that lies row-major at `data`. The boxes of all items of one tensor, of all ranks, must make it up exactly.
struct SaveItem {
  tensor::LogicalTensor tensor;
  tensor::Box box;
  const std::byte* data = nullptr;
};

/// An item that holds the whole tensor.
SaveItem whole_item(tensor::LogicalTensor tensor, const void* data);

struct SaveOptions {
  Retention retention;
  int64_t piece_limit_bytes = int64_t{8} << 20;  // longer boxes are cut, which bounds what a partial load must read
  double grace_s = 60;                           // leftovers of dead processes younger than this stay
  std::optional<CheckpointId> id;                // random unless given
  const Storage* storage = nullptr;              // the local file system unless given
  const Team* team = nullptr;                    // the ranks that save together; alone unless given
};

/// Phases in seconds; `data_bytes` are those of all ranks and include headers and padding.
struct SaveReport {
  fs::path path;
  CheckpointId id;
  int64_t data_bytes = 0, metadata_bytes = 0;
  double plan_s = 0, write_s = 0, sync_s = 0, commit_s = 0, clean_s = 0;
};

/// Writes `folder/step_<step>`, replacing a checkpoint of that step in the moment the new one is complete. Afterwards old
/// ones are removed by the retention. On any failure a CheckpointError is thrown, nothing of the new checkpoint remains and
/// the old ones are untouched; failures after the commit (removing old ones) are only logged. All ranks of a team call it with
/// the same folder, step and retention, each with its own items; extras are those of rank 0. They return, or throw, together.
SaveReport save(const fs::path& folder, int64_t step, const std::vector<SaveItem>& items, const std::map<std::string, std::string>& extras,
                const SaveOptions& options = {});

}  // namespace ingot::checkpoint
