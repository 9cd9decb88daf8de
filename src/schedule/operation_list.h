// The work of one rank as data: what it computes and what it says to the others, in the order in which the program issues it, and which
// memory that takes. Filled by one thread; values.
//
// Order follows from data and streams. An operation waits for those that made what it reads, for those that still read what it overwrites,
// and for the one before it on its stream. What is not on the compute stream also waits for all computation issued before it: so it is with
// synchronous kernels, and with c10d, whose communication streams wait for the compute stream.
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

/// `count` products [m, k] x [k, n].
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
  /// 4 pairs heads head_dim; backward five products instead of two.
  double flops() const { return (backward ? 10.0 : 4.0) * pairs * static_cast<double>(heads * head_dim); }
};
/// A kernel of linear attention, bound by products or by memory.
struct StateWork {
  double flops = 0;
  int64_t bytes = 0;
};
/// Bound by memory: bytes read and written.
struct Move {
  int64_t bytes = 0;
};
struct Message {
  Kind kind = Kind::send;
  Group group;        // of a collective; of a message, {own rank or peer}: see peer
  int64_t bytes = 0;  // of the tensor that is whole on this rank, as comm::Operation::bytes()
  int64_t element_bytes = 1;
  int peer = -1;             // rank: root of a broadcast or reduce, the other end of a message
  bool is_launched = false;  // by an operation before: a kernel that goes on
};
using Work = std::variant<Gemm, Attention, StateWork, Move, Message>;

/// side: small kernels beside the compute stream, which a communication library runs.
enum class Stream : uint8_t { compute, side, collective, sending, receiving };
inline constexpr int kStreams = 5;
std::string name_of(Stream stream);

struct Operation {
  std::string name;
  Work work;
  Stream stream = Stream::compute;
  std::vector<int> after;  // indices in the list
};

using Buffer = int;

/// Memory lives from the start of the first operation that writes it to the end of the last one that uses it.
struct BufferUse {
  int64_t bytes = 0;
  bool is_resident = false;  // from the beginning
  bool is_kept = false;      // to the end
  std::vector<int> users;    // operations, the first one made it unless it is resident
};

class OperationList {
 public:
  Buffer buffer(int64_t bytes);
  /// There from the beginning to the end.
  Buffer resident(int64_t bytes);
  /// There from the beginning to its last use.
  Buffer input(int64_t bytes);
  void keep(Buffer buffer) { buffers_[static_cast<size_t>(buffer)].is_kept = true; }

  /// Returns the operation's index.
  int add(std::string name, Stream stream, Work work, const std::vector<Buffer>& reads, const std::vector<Buffer>& writes);

  /// Forgets the operations before `index`; what they made and later ones use is then there from the beginning.
  void drop_before(int index);

  const std::vector<Operation>& operations() const { return operations_; }
  const std::vector<BufferUse>& buffers() const { return buffers_; }
  int size() const { return static_cast<int>(operations_.size()); }

 private:
  struct Access {
    int writer = -1;
    std::vector<int> readers;  // since
  };
  std::vector<Operation> operations_;
  std::vector<BufferUse> buffers_;
  std::vector<Access> accesses_;
  int last_compute_ = -1;
};

/// One list for each rank.
struct Program {
  std::vector<OperationList> ranks;
};

}  // namespace ingot::schedule
