// The last operations of a rank: what it started, what it finished, in which step. When a run hangs or dies each rank writes
// its ledger, and compare() finds the rank that went astray first.
//
// File (JSON): {"format": 1, "rank", "world", "reason", "entries": [{"group", "members", "sequence", "kind", "bytes", "dtype",
// "peer", "step", "started_s", "finished_s" or null}]}, oldest first; times in seconds since the epoch.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "comm/heartbeat.h"
#include "comm/operation.h"

namespace ingot::comm {

struct LedgerEntry {
  std::string group;
  std::vector<int> members;
  uint64_t sequence = 0;
  std::string kind, dtype;
  int64_t bytes = 0;
  int peer = -1;  // of a message or the root; a rank of the group
  int64_t step = 0;
  double started_s = 0, finished_s = 0;  // finished_s 0: under way
};

class Ledger {
 public:
  explicit Ledger(int rank, size_t capacity = 1024) : rank_(rank), capacity_(capacity) {}

  /// What a launcher sees of this rank.
  Heartbeat& heartbeat() { return heartbeat_; }
  /// From now on a launcher sees it; before there are groups.
  void show(Heartbeat heartbeat) { heartbeat_ = std::move(heartbeat); }
  /// Operations from now on belong to this step.
  void set_step(int64_t step);
  int64_t step() const;
  /// The ticket that finish() takes.
  uint64_t start(const std::string& group, const std::vector<int>& members, const Operation& operation);
  void finish(uint64_t ticket);
  /// Its wait returned, but only streams wait: the entry is finished once `is_done` says so, which start(), entries() and write() ask.
  void finish_when(uint64_t ticket, std::function<bool()> is_done);
  std::vector<LedgerEntry> entries() const;
  /// Writes DIR/ledger-rank-N.json. Throws FileError.
  void write(const std::filesystem::path& folder, int world, const std::string& reason) const;

 private:
  void finish_locked(uint64_t ticket) const;

  mutable std::mutex mutex_;
  int rank_;
  size_t capacity_;
  int64_t step_ = 0;
  Heartbeat heartbeat_;
  uint64_t first_ticket_ = 0;  // of entries_.front()
  mutable std::deque<LedgerEntry> entries_;
  std::deque<std::pair<uint64_t, std::function<bool()>>> under_way_;  // operations that streams wait for
};

struct LedgerFile {
  int rank = 0, world = 0;
  std::string reason;
  std::vector<LedgerEntry> entries;
};
/// Throws DataError when the file is not a ledger.
LedgerFile read_ledger(const std::filesystem::path& path);
/// All ledger-rank-*.json of a folder, by rank.
std::vector<LedgerFile> read_ledgers(const std::filesystem::path& folder);

struct Divergence {
  int rank = -1;            // of the world; -1: no rank went astray
  std::string explanation;  // in words, with operation, group, step
};
/// The first operation, in the order of time, on which the ranks of a group do not agree, and the rank that differs from most:
/// it is absent (no ledger, or stopped earlier), or did another operation, or another size.
Divergence compare(const std::vector<LedgerFile>& ledgers);

}  // namespace ingot::comm
