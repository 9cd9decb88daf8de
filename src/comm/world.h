// The ranks of a job and how they find each other. A World is one rank's view; it makes groups, and owns the counters and the
// ledger that they write to.
//
// Processes rendezvous in a store (TCP), whose address their launcher sets; ranks on one machine then communicate through shared memory,
// others over Gloo, GPUs over NCCL. For tests and small machines, ranks can be threads of one process (run_ranks).
// One thread of a rank uses its World; it must outlive its groups.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/group.h"
#include "comm/rank_environment.h"
#include "comm/shared_backend.h"

namespace ingot::comm {

struct WorldOptions {
  std::chrono::duration<double> timeout{600};  // of every operation
  std::chrono::duration<double> rendezvous_timeout{300};
  std::string backend = "auto";  // auto, shared_memory, gloo, nccl
  ArtificialDelay delay;
};

/// What connects the members of a group; one per way in which ranks can meet.
class Fabric {
 public:
  virtual ~Fabric() = default;
  /// Called by all members with the same arguments but `rank`.
  virtual std::unique_ptr<Backend> connect(const std::string& key, const std::vector<int>& members, int rank) = 0;
  virtual std::string description() const = 0;
};

class World {
 public:
  /// A job of one: no fabric.
  World();
  World(int rank, int size, std::unique_ptr<Fabric> fabric);
  /// As the environment says; connects and checks that all ranks came. `is_gpu`: groups use NCCL. Throws CommError, naming
  /// what was tried, when they do not meet in time.
  static std::unique_ptr<World> join(const RankEnvironment& environment, bool is_gpu, const WorldOptions& options);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// "8 ranks on 1 machine through shared memory"
  std::string description() const;

  /// All members (world ranks, in the order of their group ranks) must call it with the same arguments, in the same order
  /// as their other groups. The calling rank must be among them.
  std::unique_ptr<Group> group(const std::string& axis, const std::vector<int>& members, bool in_background = false);
  /// Group of all ranks; made at first use, which all ranks must come to.
  Group& everyone();

  Counters& counters() { return counters_; }
  Ledger& ledger() { return ledger_; }

 private:
  int rank_ = 0, size_ = 1;
  std::unique_ptr<Fabric> fabric_;
  Counters counters_;
  Ledger ledger_;
  std::map<std::string, int> groups_made_;  // by axis and members
  std::unique_ptr<Group> everyone_;
};

/// Runs `body` on `size` threads, each a rank with a World of its own, and returns when all have. Each thread computes with
/// one thread of torch's. When bodies throw, the others' operations fail soon after, and the first exception that was not
/// such a consequence is rethrown.
void run_ranks(int size, const std::function<void(World&)>& body, const WorldOptions& options = {});

}  // namespace ingot::comm
