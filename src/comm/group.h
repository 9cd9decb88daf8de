// A group of ranks and what they can do together. The interface is the same over threads of one process, processes of one
// machine, Gloo and NCCL (RCCL under ROCm). On GPUs a group takes tensors of either kind: the host's travel as without GPUs, which is
// how ranks agree on something without waiting for a kernel.
//
// All ranks of a group must call the same collectives in the same order with matching sizes; messages between two ranks
// arrive in the order of the sends and are matched with the receives in their order. Tensors are contiguous, of fp64, fp32,
// bf16, int64, int32 or uint8 (reductions of bf16 add in fp32; NCCL rounds each of its sums to bf16), and must stay untouched until
// wait() returned (on GPUs and emulated devices: until the stream that waited has come there). Every wait ends by the group's time-out with
// a CommError that names the ranks that did not come. After a CommError the group is broken: only destroying it makes sense. One thread of
// a rank uses a group at a time. A group must not outlive its World.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/backend.h"
#include "comm/counters.h"
#include "comm/ledger.h"
#include "comm/operation.h"
#include "comm/work.h"
#include "device/aten.h"

namespace ingot::comm {

class StreamTransfers;

class Group {
 public:
  /// `members`: ranks of the world, in the order that gives them their rank here. `axis` is what counters, ledger and
  /// messages call it. A group of one needs no back-end. What goes on `in_background`, beside training, is no sign of its progress.
  Group(std::string axis, std::vector<int> members, int rank, std::unique_ptr<Backend> backend, Counters& counters, Ledger& ledger,
        bool in_background = false);
  ~Group();

  int rank() const { return rank_; }  // in this group
  int size() const { return static_cast<int>(members_.size()); }
  const std::string& axis() const { return axis_; }
  const std::vector<int>& members() const { return members_; }

  // Blocking. Reductions give the same bits on every rank and in every run.
  void all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::sum);
  void reduce_scatter(const at::Tensor& output, const at::Tensor& input, Reduction reduction = Reduction::sum);
  void all_gather(const at::Tensor& output, const at::Tensor& input);
  void broadcast(const at::Tensor& tensor, int root);
  void reduce(const at::Tensor& tensor, int root, Reduction reduction = Reduction::sum);
  void all_to_all(const at::Tensor& output, const at::Tensor& input);
  void all_to_all(const at::Tensor& output, const std::vector<int64_t>& output_rows, const at::Tensor& input,
                  const std::vector<int64_t>& input_rows);
  void send(const at::Tensor& tensor, int to);
  void receive(const at::Tensor& tensor, int from);
  void barrier();

  // The same, under way when the call returns.
  Work start_all_reduce(const at::Tensor& tensor, Reduction reduction = Reduction::sum);
  /// output [n] = the reduction over ranks of part rank() of input [size() * n].
  Work start_reduce_scatter(const at::Tensor& output, const at::Tensor& input, Reduction reduction = Reduction::sum);
  /// output [size() * n] = the inputs [n] of all ranks, in their order.
  Work start_all_gather(const at::Tensor& output, const at::Tensor& input);
  Work start_broadcast(const at::Tensor& tensor, int root);
  /// The reduction over ranks, in the root's tensor; the others' stay as they are.
  Work start_reduce(const at::Tensor& tensor, int root, Reduction reduction = Reduction::sum);
  /// Rows (first dim) of input go to the ranks in their order, input_rows[r] to rank r; output_rows[r] come from rank r.
  Work start_all_to_all(const at::Tensor& output, const std::vector<int64_t>& output_rows, const at::Tensor& input,
                        const std::vector<int64_t>& input_rows);
  Work start_send(const at::Tensor& tensor, int to);
  Work start_receive(const at::Tensor& tensor, int from);

 private:
  Work start(Operation operation, bool blocking);
  Work start_recorded(Operation operation, bool blocking);
  void check(const at::Tensor& tensor, Kind kind) const;
  Operation all_reduce_of(const at::Tensor& tensor, Reduction reduction) const;
  Operation reduce_scatter_of(const at::Tensor& output, const at::Tensor& input, Reduction reduction) const;
  Operation all_gather_of(const at::Tensor& output, const at::Tensor& input) const;
  Operation broadcast_of(const at::Tensor& tensor, int root) const;
  Operation reduce_of(const at::Tensor& tensor, int root, Reduction reduction) const;
  Operation all_to_all_of(const at::Tensor& output, const std::vector<int64_t>& output_rows, const at::Tensor& input,
                          const std::vector<int64_t>& input_rows) const;
  Operation message_of(Kind kind, const at::Tensor& tensor, int peer) const;

  std::string axis_;
  std::vector<int> members_;
  int rank_;
  std::unique_ptr<Backend> backend_;
  std::string place_;                           // axis and members, for messages
  std::unique_ptr<StreamTransfers> transfers_;  // once there are tensors of emulated devices; gone before the back-end
  Counters& counters_;
  Ledger& ledger_;
  Heartbeat* heartbeat_;                     // null: in the background
  uint64_t collectives_ = 0, messages_ = 0;  // started so far
};

/// The texts of all ranks, in their order, on `root`; nothing elsewhere.
std::vector<std::string> gather_texts(Group& group, const std::string& text, int root);
/// On each rank its own of the texts that `root` gives, one a rank.
std::string scatter_text(Group& group, const std::vector<std::string>& texts, int root);
/// The text of `root` on every rank of the group.
std::string broadcast_text(Group& group, const std::string& text, int root);

}  // namespace ingot::comm
