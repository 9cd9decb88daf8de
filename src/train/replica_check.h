// Do ranks that hold copies of a weight hold the same bits? Memory or arithmetic that went wrong on one of them without a word, and a
// collective that brought it other bytes, make them differ; the loss shows that late or never.
//
// Compared are digests (kernels/digest.h) of a step's weights before the update, as its passes used them, and after it: an update writes
// over much of what went wrong before (ZeRO gathers weights anew, masters are rounded anew). Without ZeRO, of fp32 masters as well.
// Not compared is what one rank alone holds: slices of masters and moments with ZeRO, and with ZeRO 3 the weights that are gathered for
// each use. A shard of tensor or expert parallelism is compared with its own copies.
//
// Weights are read twice and masters once in a step that is checked; each rank sends 80 bytes to each other and a number. The host waits
// for the device once. All ranks of the job make one and the same calls; what it is given must outlive it. One thread at a time.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "mesh/groups.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "parallel/buckets.h"

namespace ingot::train {

class ReplicaCheck {
 public:
  ReplicaCheck(models::Model& model, const optim::Optimizer& optimizer, parallel::Buckets& buckets, const mesh::ParallelConfig& config,
               mesh::Groups& groups);

  /// Looks at the weights that a step's passes have used. Nobody waits.
  void before_update();
  /// Looks at the weights again, and at the masters, and compares. Collective over all ranks; also where the update was skipped. Throws
  /// ReplicaError, on all ranks the same, which names the first weight that differs, who holds what, and what to do.
  void compare(int64_t step);
  /// The last step behind which all was well; 0: nothing has been compared.
  int64_t agreed() const { return agreed_; }

 private:
  using Digest = std::array<int64_t, 2>;
  /// By which ranks hold copies. Of a parameter of both ends of a pipeline these do.
  enum Copies : size_t { whole, cut, expert, whole_at_ends, cut_at_ends };
  static constexpr size_t kKinds = 5;
  struct Weight {
    const layers::Parameter* parameter;
    Copies kind;
  };
  enum class Seen { before_update, after_update, master };
  struct Entry {
    const layers::Parameter* parameter;
    Seen seen;
    Digest digest;
  };
  using Entries = std::array<std::vector<Entry>, kKinds>;

  Copies kind_of(const layers::Parameter& parameter) const;
  /// World ranks that hold copies of what `mesh`'s rank holds; none if it holds nothing of the kind.
  static std::vector<int> holders(const mesh::Mesh& mesh, Copies kind);
  at::Tensor digest_of_weights();
  Entries look();
  /// Of the first `count`.
  static Digest combined(const std::vector<Entry>& entries, size_t count);
  /// `own` of all ranks, behind each other.
  std::vector<Digest> gather(const std::vector<Digest>& own) const;
  [[noreturn]] void fail(int64_t step, int lead, Copies of_lead, const Entries& entries) const;
  std::string describe(int64_t step, const Entry& entry, const std::vector<int>& members, const std::vector<Digest>& of_ranks,
                       const std::vector<std::string>& hosts) const;

  models::Model& model_;
  const optim::Optimizer& optimizer_;
  parallel::Buckets& buckets_;
  const mesh::ParallelConfig config_;
  mesh::Groups& groups_;
  std::array<std::vector<int>, kKinds> holders_;
  std::vector<Weight> weights_;  // that others hold, too
  at::Tensor before_;            // int64 [weights, 2], between the two calls of a step
  int64_t agreed_ = 0;
};

}  // namespace ingot::train
