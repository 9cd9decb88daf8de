// Loading a checkpoint by many ranks: each says which boxes it wants, of whatever layout; every piece that any of them wants is read
// from storage by one of them, checked, and passed on to the others that want a part of it, while the next pieces are read.
//
// Rank 0 reads the metadata and tells the others. Nothing about the layout that saved is needed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/load/load_plan.h"
#include "checkpoint/load/reader.h"
#include "checkpoint/ranks/host_memory.h"
#include "checkpoint/ranks/team.h"

namespace ingot::checkpoint {

/// A part of a tensor that this rank wants, in the dtype of the checkpoint, row-major at `data`.
struct LoadItem {
  std::string name;
  tensor::Box box;
  std::byte* data = nullptr;
};

struct LoadOptions {
  bool verify = true;                // compare checksums of all that is read
  int64_t batch_bytes = 0;           // a rank reads about so much between two exchanges; two batches are in memory at once.
                                     // 0: enough for what the storage reads at once, 64 MiB or more
  int threads = 0;                   // that read; they wait more than they compute. 0: as the storage is read fast
  std::string machine;               // this rank's: what ranks of one machine want in common they read through its cache
  const Storage* storage = nullptr;  // the local file system unless given
  const Team* team = nullptr;        // the ranks that load together; alone unless given
};

/// Where the time went, and the bytes; of one rank.
struct LoadPhases {
  double plan_s = 0, read_s = 0, exchange_s = 0, total_s = 0;  // read_s: waiting for reads, hidden ones left out
  int64_t wanted_bytes = 0, sent_bytes = 0, received_bytes = 0;
  int64_t read_bytes = 0, cached_bytes = 0;  // from storage; what another rank of the machine has read from it
};

struct LoadReport {
  LoadPhases phases;              // of this rank
  std::vector<LoadPhases> ranks;  // of all, on rank 0
};

class TeamReader {
 public:
  /// All ranks call it with the same path; all throw CheckpointError when the checkpoint cannot be opened by one of them.
  TeamReader(const fs::path& path, const LoadOptions& options = {});
  /// Of what newest_host_copy found.
  TeamReader(const HostCopy& copy, const LoadOptions& options);

  const Reader& reader() const { return *reader_; }
  const Metadata& metadata() const { return reader_->metadata(); }
  /// Read by one rank, the same on all.
  std::string extra(const std::string& name) const;

  /// Fills the items. Each rank gives its own, in any layout; a box may be wanted by any number of ranks. When anything goes wrong on one
  /// rank, all throw a CheckpointError that says on which, and what the items point to is undefined: load into memory that is not in use.
  LoadReport load(const std::vector<LoadItem>& items) const;

 private:
  const Team& team() const { return options_.team ? *options_.team : alone(); }
  LoadOptions options_;
  std::unique_ptr<Reader> reader_;
  Readers readers_;
};

}  // namespace ingot::checkpoint
