// Checkpoints in the memory of the machines that train: each rank keeps its own files in a memory-backed folder of its machine, which
// outlives the process, and a copy of those of one rank on another machine. Cheap enough for every few steps; the loss of any one machine
// costs no more than these. Each rank's folder is complete in itself (metadata, own files, the other's files), so that ranks that come
// back in another number or order find each other's:
//
//   FOLDER/rank_00003/step_00000120/{metadata.bin, data_00003.bin, data_00001.bin}
//
// A new checkpoint replaces the one before once all ranks have it: memory holds two at most. What is found after a failure is trusted
// only when every byte of it has been checked.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/ranks/team.h"
#include "checkpoint/save/destination.h"

namespace ingot::checkpoint {

/// Whose files a rank keeps besides its own: those of a rank of another machine, or none where there is one machine only; `always`: those
/// of another rank even then.
enum class PeerCopy { never, other_machine, always };
/// "auto" is other_machine. Throws ConfigError.
PeerCopy peer_copy_from_name(const std::string& name);

/// Of each rank the one that keeps a copy of its files; -1: none. `machines`: of each rank, any name.
std::vector<int> keepers(const std::vector<std::string>& machines, PeerCopy mode);

struct HostMemoryOptions {
  fs::path folder;      // on every machine, a tmpfs
  std::string machine;  // this rank's
  PeerCopy peer_copy = PeerCopy::other_machine;
  int64_t batch_bytes = int64_t{32} << 20;  // sent to the keeper at once
  const Storage* storage = nullptr;         // the local file system, without O_DIRECT, unless given
};

class HostMemory : public Destination {
 public:
  /// All ranks make one. The team must outlive it.
  HostMemory(const HostMemoryOptions& options, const Team& team);
  const Storage& storage() const override { return storage_; }
  fs::path path_of(int64_t step) const override;
  std::string name_of_file(const CheckpointId& id, uint32_t file) const override;
  Place begin(int64_t step, const std::optional<CheckpointId>& id) override;
  void commit(const std::function<Written&()>& written) override;
  void clean() override;
  void abandon() override;

  /// The rank that keeps a copy of this one's files; -1: none does.
  int keeper() const { return keepers_[static_cast<size_t>(team_.rank())]; }
  /// How many ranks' files a rank keeps at most, its own included.
  int copies() const;

 private:
  std::string pass_to_keepers(const Metadata& metadata, const std::vector<uint32_t>& writers);
  HostMemoryOptions options_;
  const Team& team_;
  const Storage& storage_;
  fs::path own_, hidden_;
  int64_t step_ = 0;
  std::vector<int> keepers_;
};

/// A checkpoint that was found in memory, sound in every byte.
struct HostCopy {
  int64_t step = 0;
  fs::path path;                               // where a message says that it lies
  std::string metadata;                        // encoded
  std::vector<fs::path> files;                 // where this rank reads each; empty: another rank does
  std::vector<std::vector<uint32_t>> readers;  // of each file
};

/// The newest one of a step after `newer_than` whose files can all be read by some rank. All ranks call it; those that come need not be
/// as many as have saved it.
std::optional<HostCopy> newest_host_copy(const fs::path& folder, const Team& team, int64_t newer_than, const Storage* storage = nullptr);

/// Removes all that this machine holds there. Never throws.
void forget_host_copies(const fs::path& folder);

}  // namespace ingot::checkpoint
