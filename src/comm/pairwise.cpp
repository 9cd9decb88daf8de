#include "comm/pairwise.h"

#include <algorithm>
#include <numeric>

#include "comm/reduce.h"

namespace ingot::comm {
namespace {

constexpr int64_t kSmallBytes = 16 << 10;
constexpr int64_t kChunkBytes = 8 << 20;                        // of the whole tensor
constexpr int64_t kChainBytes = 4 << 20, kPartBytes = 1 << 20;  // of a broadcast, where a chain is faster; its parts
constexpr int64_t kMostParts = 64;

class Messages {
 public:
  Messages(int rank, int size, const Wire& wire) : rank_(rank), size_(size), wire_(wire) {}

  void receive(const at::Tensor& flat, int from) {
    if (flat.numel() > 0) waiters_.push_back(wire_.receive(flat, from));
  }
  void send(const at::Tensor& flat, int to) {
    if (flat.numel() > 0) waiters_.push_back(wire_.send(flat, to));
  }
  /// The other ranks, the next one first, so that not all send to the same one at once.
  std::vector<int> others() const {
    std::vector<int> list;
    for (int step = 1; step < size_; ++step) list.push_back((rank_ + step) % size_);
    return list;
  }
  void wait() {
    for (auto& waiter : waiters_) waiter();
    waiters_.clear();
  }

 private:
  int rank_, size_;
  const Wire& wire_;
  std::vector<Wire::Waiter> waiters_;
};

// Adds the same elements of all ranks: `own` here, the others' in rows of `arrived` [size - 1, n], in the order of the ranks.
void add_up(const at::Tensor& output, const at::Tensor& own, const at::Tensor& arrived, int rank, int size, Reduction reduction) {
  std::vector<const void*> sources;
  for (int r = 0; r < size; ++r) sources.push_back(r == rank ? own.const_data_ptr() : arrived[r < rank ? r : r - 1].const_data_ptr());
  reduce(output.mutable_data_ptr(), sources, output.numel(), output.scalar_type(), reduction);
}

at::Tensor row_of(const at::Tensor& arrived, int from, int rank) { return arrived[from < rank ? from : from - 1]; }

struct Slices {
  int64_t count;
  int size;
  at::Tensor of(const at::Tensor& flat, int r) const {
    const int64_t begin = count * r / size;
    return flat.narrow(0, begin, count * (r + 1) / size - begin);
  }
};

// What arrives lies in memory that is used again for every chunk: large fresh buffers would cost more in page faults than the
// messages do.
void all_reduce(const Operation& o, int rank, int size, Messages& messages) {
  const auto all = o.output.view(-1);
  if (o.bytes() <= kSmallBytes) {
    const auto arrived = at::empty({size - 1, all.numel()}, all.options());
    for (const int other : messages.others()) messages.receive(row_of(arrived, other, rank), other);
    for (const int other : messages.others()) messages.send(all, other);
    messages.wait();
    return add_up(all, all, arrived, rank, size, o.reduction);
  }
  const int64_t chunk = kChunkBytes / o.element_bytes();
  const auto buffer = at::empty({(size - 1) * (std::min(chunk, all.numel()) / size + 1)}, all.options());
  for (int64_t from = 0; from < all.numel(); from += chunk) {
    const auto flat = all.narrow(0, from, std::min(chunk, all.numel() - from));
    const Slices slices{flat.numel(), size};
    const auto own = slices.of(flat, rank);
    const auto arrived = buffer.narrow(0, 0, (size - 1) * own.numel()).view({size - 1, own.numel()});
    for (const int other : messages.others()) messages.receive(row_of(arrived, other, rank), other);
    for (const int other : messages.others()) messages.send(slices.of(flat, other), other);
    messages.wait();
    add_up(own, own, arrived, rank, size, o.reduction);
    for (const int other : messages.others()) messages.receive(slices.of(flat, other), other);
    for (const int other : messages.others()) messages.send(own, other);
    messages.wait();
  }
}

void reduce_scatter(const Operation& o, int rank, int size, Messages& messages) {
  const int64_t n = o.output.numel(), chunk = std::max<int64_t>(1, kChunkBytes / o.element_bytes() / size);
  const auto parts = o.input.view({size, n});
  const auto output = o.output.view(-1);
  const auto buffer = at::empty({(size - 1) * std::min(chunk, n)}, output.options());
  for (int64_t from = 0; from < n; from += chunk) {
    const int64_t count = std::min(chunk, n - from);
    const auto arrived = buffer.narrow(0, 0, (size - 1) * count).view({size - 1, count});
    for (const int other : messages.others()) messages.receive(row_of(arrived, other, rank), other);
    for (const int other : messages.others()) messages.send(parts[other].narrow(0, from, count), other);
    messages.wait();
    add_up(output.narrow(0, from, count), parts[rank].narrow(0, from, count), arrived, rank, size, o.reduction);
  }
}

void all_gather(const Operation& o, int rank, int size, Messages& messages) {
  const auto parts = o.output.view({size, o.input.numel()});
  for (const int other : messages.others()) messages.receive(parts[other], other);
  for (const int other : messages.others()) messages.send(o.input.view(-1), other);
  if (parts[rank].data_ptr() != o.input.data_ptr()) parts[rank].copy_(o.input.view(-1));
  messages.wait();
}

// Large ones go along a chain in parts, each of which a rank passes on while it receives the next: no rank sends more than the message
// once, where the root alone would send it to everyone.
void broadcast(const Operation& o, int rank, int size, const Wire& wire, Messages& messages) {
  const auto flat = o.output.view(-1);
  if (size == 2 || o.bytes() < kChainBytes) {
    if (rank != o.peer) messages.receive(flat, o.peer);
    else
      for (const int other : messages.others()) messages.send(flat, other);
    return messages.wait();
  }
  const int64_t least = kPartBytes / o.element_bytes(), part = std::max(least, (flat.numel() + kMostParts - 1) / kMostParts);
  const auto parts = flat.split(part);
  const bool is_last = (rank + 1) % size == o.peer;
  std::vector<Wire::Waiter> arriving;
  if (rank != o.peer)
    for (const auto& p : parts) arriving.push_back(wire.receive(p, (rank + size - 1) % size));
  for (size_t i = 0; i < parts.size(); ++i) {
    if (rank != o.peer) arriving[i]();
    if (!is_last) messages.send(parts[i], (rank + 1) % size);
  }
  messages.wait();
}

void reduce_to_root(const Operation& o, int rank, int size, Messages& messages) {
  const auto flat = o.output.view(-1);
  const int64_t chunk = std::max<int64_t>(1, kChunkBytes / o.element_bytes() / size);
  const auto buffer = at::empty({rank == o.peer ? (size - 1) * std::min(chunk, flat.numel()) : 0}, flat.options());
  for (int64_t from = 0; from < flat.numel(); from += chunk) {
    const auto part = flat.narrow(0, from, std::min(chunk, flat.numel() - from));
    if (rank != o.peer) {
      messages.send(part, o.peer);
      messages.wait();
      continue;
    }
    const auto arrived = buffer.narrow(0, 0, (size - 1) * part.numel()).view({size - 1, part.numel()});
    for (const int other : messages.others()) messages.receive(row_of(arrived, other, rank), other);
    messages.wait();
    add_up(part, part, arrived, rank, size, o.reduction);
  }
}

void all_to_all(const Operation& o, int rank, int size, Messages& messages) {
  const auto part = [size](const at::Tensor& flat, const std::vector<int64_t>& counts, int r) {
    const int64_t begin = std::accumulate(counts.begin(), counts.begin() + r, int64_t{0});
    return flat.narrow(0, begin, counts[static_cast<size_t>(r)]);
  };
  const auto in = o.input.view(-1), out = o.output.view(-1);
  for (const int other : messages.others()) messages.receive(part(out, o.output_counts, other), other);
  for (const int other : messages.others()) messages.send(part(in, o.input_counts, other), other);
  part(out, o.output_counts, rank).copy_(part(in, o.input_counts, rank));
  messages.wait();
}

void barrier(int rank, int size, Messages& messages) {
  const auto token = at::zeros({size}, at::kByte);
  for (const int other : messages.others()) messages.receive(token.narrow(0, other, 1), other);
  for (const int other : messages.others()) messages.send(token.narrow(0, rank, 1), other);
  messages.wait();
}

}  // namespace

void run_pairwise(const Operation& o, int rank, int size, const Wire& wire) {
  Messages messages(rank, size, wire);
  switch (o.kind) {
    case Kind::all_reduce: return all_reduce(o, rank, size, messages);
    case Kind::reduce_scatter: return reduce_scatter(o, rank, size, messages);
    case Kind::all_gather: return all_gather(o, rank, size, messages);
    case Kind::broadcast: return broadcast(o, rank, size, wire, messages);
    case Kind::reduce: return reduce_to_root(o, rank, size, messages);
    case Kind::all_to_all: return all_to_all(o, rank, size, messages);
    case Kind::barrier: return barrier(rank, size, messages);
    default: return;
  }
}

}  // namespace ingot::comm
