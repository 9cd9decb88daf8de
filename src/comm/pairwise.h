// Collectives made of messages between pairs, for wires whose own collectives send more than they must. Reductions are exact
// in order: the owner of a slice receives it from every rank and adds in the order of the ranks, so all ranks hold the same
// bits and bf16 is added in fp32. Bytes are those of operation.h's traffic_of, but for small all_reduces, which go to
// everyone whole: one round of messages instead of two. Large broadcasts go along a chain of ranks, so that no link carries
// them more than once.
#pragma once

#include <functional>
#include <vector>

#include "comm/operation.h"

namespace ingot::comm {

/// Starts a message and returns what waits for it.
struct Wire {
  using Waiter = std::function<void()>;
  std::function<Waiter(const at::Tensor& flat, int to)> send;
  std::function<Waiter(const at::Tensor& flat, int from)> receive;
};

/// Carries out a collective (not a message); all tensors on the host.
void run_pairwise(const Operation& operation, int rank, int size, const Wire& wire);

}  // namespace ingot::comm
