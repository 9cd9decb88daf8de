// Saving a checkpoint: everything is written into a hidden folder, made durable, and becomes visible by one rename. Killed at
// any moment, the folder holds the old checkpoints and, complete or not at all, the new one.
//
// Many ranks save together into one folder, which all must see (a shared file system). Each gives what it holds; a plan says who
// writes what (save_plan.h), made once and kept as long as no rank's tensors, shapes or layout change. Then, in the background:
//
//   snapshot   copies this rank's part into staging memory; training goes on, but must not change it before wait_copied()
//   write      hashes the pieces and writes the blocks of its files, several at once; fsync
//   commit     rank 0 has heard from all ranks that their files are durable, writes the metadata and publishes
#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <optional>
#include <thread>
#include <vector>

#include "checkpoint/format/metadata.h"
#include "checkpoint/ranks/team.h"
#include "checkpoint/save/destination.h"
#include "checkpoint/save/save_plan.h"
#include "checkpoint/save/snapshot.h"
#include "checkpoint/storage/folder.h"

namespace ingot::checkpoint {

/// A part of a tensor that lies row-major at `data`. The boxes of all items of one tensor must make it up exactly; several ranks may
/// hold the same box, with the same content: one of them writes it.
struct SaveItem {
  tensor::LogicalTensor tensor;
  tensor::Box box;
  const std::byte* data = nullptr;
  bool is_on_device = false;  // SaveOptions::copy fetches it
};

/// An item that holds the whole tensor.
SaveItem whole_item(tensor::LogicalTensor tensor, const void* data);

/// Named blobs. Of several ranks, each name is given by one.
using Extras = std::map<std::string, std::string>;

struct SaveOptions {
  Retention retention;
  int64_t piece_limit_bytes = int64_t{8} << 20;  // longer boxes are cut, which bounds what a partial load must read
  int64_t file_limit_bytes = int64_t{4} << 30;
  double grace_s = 60;                     // leftovers of dead processes younger than this stay
  int64_t staging_bytes = 256 << 20;       // memory for copies; as much as a rank writes = training never waits for storage
  int64_t block_bytes = kUsualBlockBytes;  // written at once
  int in_flight = 1;                       // saves under way at once; the next one waits for the oldest
  bool refuse_nonfinite = false;           // NaN or Inf in a piece of floating point fails the save
  std::optional<CheckpointId> id;          // random unless given
  const Storage* storage = nullptr;        // the local file system unless given
  const Team* team = nullptr;              // the ranks that save together; alone unless given
  /// The same ranks for the thread that calls start(), while `team` belongs to the background. Without it start() waits until no save
  /// is under way.
  const Team* calling_team = nullptr;
  Snapshot::Copy copy;         // of what lies on a device
  Staging::Allocate allocate;  // staging memory; pages of this process unless given
};

/// Where a rank's time went. Bytes over seconds is the bandwidth of a phase; phases overlap.
struct SavePhases {
  double plan_s = 0;   // in start(): who writes what, or that it is as before
  double copy_s = 0;   // until all was copied
  double stall_s = 0;  // the caller waited, in start() and wait_copied()
  double hash_s = 0;
  double write_s = 0;   // from the first block to the last
  double sync_s = 0;    // fsync
  double commit_s = 0;  // waiting for the others, and rank 0's metadata and rename
  double total_s = 0;   // from start() until durable and visible
  int64_t bytes = 0;    // that this rank wrote
};

struct SaveReport {
  fs::path path;
  CheckpointId id;
  int64_t step = 0;
  int64_t data_bytes = 0, metadata_bytes = 0;  // of all ranks, headers and padding included; on rank 0
  bool planned = false;                        // false: the plan of the save before was used again
  SavePhases phases;                           // of this rank
  std::vector<SavePhases> ranks;               // of all, on rank 0; commit_s and total_s of the others are not known there
  double clean_s = 0;                          // removing old ones, after the commit
};

/// How a save ended; `failure` is empty when it is durable and visible.
struct SaveOutcome {
  SaveReport report;
  std::string failure;
  bool team_is_lost = false;  // ranks could not speak to each other (one never came, say): the saver needs another team
};

class Saver {
 public:
  /// Checkpoints go to `folder`/step_N. What options point to must outlive it.
  Saver(const fs::path& folder, const SaveOptions& options);
  /// Elsewhere: `storage`, `retention` and `grace_s` of the options are not used.
  Saver(std::unique_ptr<Destination> destination, SaveOptions options);
  /// Waits for what is under way.
  ~Saver();
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  /// Begins to save. What the items point to must stay, unchanged, until wait_copied() returned; `keep` stays alive until then. Waits
  /// while options.in_flight saves are under way. Throws CheckpointError when the items of all ranks do not fit together; what happens
  /// later is in finished(). All ranks of a team call it with the same step, each with its own items.
  void start(int64_t step, const std::vector<SaveItem>& items, Extras extras, std::shared_ptr<void> keep = nullptr);
  /// Returns when nothing that a save was given is needed any more. Cheap when nothing is under way.
  void wait_copied();
  /// Outcomes since the last call, oldest first.
  std::vector<SaveOutcome> finished();
  bool is_busy() const;
  /// Until nothing is under way.
  void wait();

  /// What this rank writes, by the plan in use: 0 before the first start() or prepare().
  int64_t own_bytes() const;
  /// Host memory held for copies.
  int64_t staging_bytes() const { return staging_.held_bytes(); }
  /// Takes it now, for the next save to be as fast as later ones; the items are those of a save to come. All ranks call it.
  void prepare(const std::vector<SaveItem>& items, bool has_extras);

 private:
  struct Job;
  void plan(const std::vector<SaveItem>& items, bool has_extras, bool& planned);
  std::vector<FileImage> images_of(const std::vector<SaveItem>& items) const;
  void run_copies();
  void run_saves();
  /// Where the background begins with the newest job.
  void give_head_start(std::unique_lock<std::mutex>& lock);
  /// From now on the caller waits for the background.
  void hurry();
  void save(Job& job);
  std::string write_part(Job& job, const fs::path& folder);
  Written& collect(Job& job, const std::vector<std::string>& parts);
  const Team& team() const { return options_.team ? *options_.team : alone(); }

  std::unique_ptr<Destination> destination_;
  SaveOptions options_;
  Staging staging_;

  // The plan that is in use; replaced only while no save is under way.
  Inventory inventory_;
  Digest fingerprint_;
  Share share_;
  std::optional<SavePlan> plan_;  // on rank 0; its metadata is here:
  Written written_;
  bool has_plan_ = false;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;  // under way, oldest first
  std::deque<std::shared_ptr<Job>> to_copy_;
  std::vector<SaveOutcome> finished_;
  std::chrono::steady_clock::time_point due_;  // when the background begins, unless it is waited for
  bool hurried_ = false, closing_ = false;
  std::thread copier_, writer_;
};

/// Saves and waits: writes `folder/step_<step>`, replacing a checkpoint of that step in the moment the new one is complete.
/// Afterwards old ones are removed by the retention. On any failure a CheckpointError is thrown, nothing of the new checkpoint remains
/// and the old ones are untouched; failures after the commit (removing old ones) are only logged. All ranks of a team return, or throw,
/// together.
SaveReport save(const fs::path& folder, int64_t step, const std::vector<SaveItem>& items, const Extras& extras,
                const SaveOptions& options = {});

}  // namespace ingot::checkpoint
