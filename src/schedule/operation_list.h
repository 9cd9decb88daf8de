// The work of one rank as data: what it computes and what it says to the others, in the order in which the program issues it. Filled by one
// thread; values. bench/parallel/layer_program.h makes them from traces.
//
// An operation waits for the one before it on its stream and for those that it names.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace ingot::schedule {

/// As comm/operation.h names them, without barriers.
enum class Kind : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, send, receive };
std::string name_of(Kind kind);

/// Ranks first, first + stride, … .
struct Group {
  int first = 0, size = 1, stride = 1;
  int rank(int index) const { return first + index * stride; }
  auto operator<=>(const Group&) const = default;
};

/// `count` GEMMs [m, k] x [k, n].
struct Gemm {
  int64_t m = 0, n = 0, k = 0, count = 1;
  double flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) * static_cast<double>(count);
  }
};
/// Softmax attention in `calls` kernels; `pairs` (query, key) visited in all rows of the batch, per head.
struct Attention {
  double pairs = 0;
  int64_t heads = 0, head_dim = 0, calls = 1;
  int64_t queries = 0, keys = 0;  // of a call, for the rate
  bool backward = false;
  /// 4 pairs heads head_dim; backward five GEMMs instead of two.
  double flops() const { return (backward ? 10.0 : 4.0) * pairs * static_cast<double>(heads * head_dim); }
};
/// A kernel of linear attention, bound by GEMMs or by memory.
struct StateWork {
  double flops = 0;
  int64_t bytes = 0;
};
/// Bound by memory: bytes read and written.
struct Move {
  int64_t bytes = 0;
};
struct Communication {
  Kind kind = Kind::send;
  Group group;        // of a collective; of a message, {own rank or peer}: see peer
  int64_t bytes = 0;  // of the tensor that is whole on this rank, as comm::Operation::bytes()
  int64_t element_bytes = 1;
  int peer = -1;  // rank: root of a broadcast or reduce, the other end of a message
};
using Work = std::variant<Gemm, Attention, StateWork, Move, Communication>;

/// side: kernels beside the compute stream.
enum class Stream : uint8_t { compute, side, collective, sending, receiving };
inline constexpr int kStreams = 5;
std::string name_of(Stream stream);

struct Operation {
  std::string name;
  Work work;
  Stream stream = Stream::compute;
  std::vector<int> after;  // indices in the list
};

class OperationList {
 public:
  /// Returns the operation's index. `after`: indices of others that must have ended.
  int add(std::string name, Stream stream, Work work, std::vector<int> after = {});

  const std::vector<Operation>& operations() const { return operations_; }
  int size() const { return static_cast<int>(operations_.size()); }

 private:
  std::vector<Operation> operations_;
};

/// One list for each rank.
struct Program {
  std::vector<OperationList> ranks;
};

}  // namespace ingot::schedule
