// One collective or message of a group, as data: what a back-end carries out, the ledger records and error messages name.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "device/aten.h"

namespace ingot::comm {

enum class Kind : uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, reduce, all_to_all, send, receive, barrier };
std::string_view name_of(Kind kind);

enum class Reduction : uint8_t { sum, max, min };

struct Operation {
  Kind kind = Kind::barrier;
  at::Tensor input, output;  // contiguous; the same tensor for all_reduce, broadcast and reduce; one of them for send and receive
  Reduction reduction = Reduction::sum;
  int peer = -1;                                     // the root of a broadcast or reduce, the other end of a message
  std::vector<int64_t> input_counts, output_counts;  // all_to_all: elements to and from each rank
  uint64_t sequence = 0;                             // number of the operation in its group (in its channel, for messages)
  int64_t step = 0;                                  // in which it was started; 0: whichever

  int64_t element_bytes() const;
  /// Of the tensor that is whole on this rank: what all_reduce, broadcast, reduce, send and receive move, reduce_scatter's input,
  /// all_gather's output, all_to_all's larger side.
  int64_t bytes() const;
  at::ScalarType dtype() const;
};

/// "all_reduce of 4.0 KiB fp32": for messages.
std::string describe(const Operation& operation);

/// Bytes that a rank must send and receive at the least for this operation in a group of `size` ranks: what the counters
/// add up, and what every back-end here moves. (n = bytes(), p = size) all_reduce 2n(p-1)/p each way; reduce_scatter and
/// all_gather n(p-1)/p; broadcast n from the root to each other, reduce n from each other to the root; all_to_all what goes
/// to and comes from other ranks. Over Gloo a large broadcast passes from rank to rank: the same bytes in all.
struct Traffic {
  int64_t sent_bytes = 0, received_bytes = 0;
};
Traffic traffic_of(const Operation& operation, int rank, int size);

using Clock = std::chrono::steady_clock;
using Deadline = Clock::time_point;

}  // namespace ingot::comm
