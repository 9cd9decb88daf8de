#include "comm/operation.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/text.h"

namespace ingot::comm {

std::string_view name_of(Kind kind) {
  static constexpr std::string_view kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce",
                                                "all_to_all", "send",           "receive",    "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

at::ScalarType Operation::dtype() const {
  return input.defined() ? input.scalar_type() : output.defined() ? output.scalar_type() : at::kByte;
}

int64_t Operation::element_bytes() const { return static_cast<int64_t>(at::elementSize(dtype())); }

int64_t Operation::bytes() const {
  const int64_t in = input.defined() ? input.numel() : 0, out = output.defined() ? output.numel() : 0;
  return std::max(in, out) * element_bytes();
}

std::string describe(const Operation& o) {
  if (o.kind == Kind::barrier) return "barrier";
  auto text = fmt::format("{} of {} {}", name_of(o.kind), base::format_bytes(o.bytes()), at::toString(o.dtype()));
  if (o.reduction != Reduction::sum) text += o.reduction == Reduction::max ? " by max" : " by min";
  if (o.kind == Kind::broadcast) text += fmt::format(" from rank {}", o.peer);
  if (o.kind == Kind::reduce) text += fmt::format(" to rank {}", o.peer);
  if (o.kind == Kind::send) text += fmt::format(" to rank {}", o.peer);
  if (o.kind == Kind::receive) text += fmt::format(" from rank {}", o.peer);
  return text;
}

namespace {

int64_t to_others(const std::vector<int64_t>& counts, int rank) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0}) - counts[static_cast<size_t>(rank)];
}

// Slices of an all_reduce are as even as whole elements allow (shared_backend.cpp, pairwise.cpp): rank r owns [begin(r), begin(r + 1)).
int64_t own_slice(int64_t elements, int rank, int size) { return elements * (rank + 1) / size - elements * rank / size; }

}  // namespace

Traffic traffic_of(const Operation& o, int rank, int size) {
  const int64_t element = o.element_bytes();
  if (size == 1) return {};
  switch (o.kind) {
    case Kind::all_reduce: {
      // Sends the slices of the others, receives its own slice from each of them; then the other way round.
      const int64_t elements = o.input.numel(), own = own_slice(elements, rank, size), others = elements - own;
      const int64_t each_way = (others + own * (size - 1)) * element;
      return {each_way, each_way};
    }
    case Kind::reduce_scatter: return {o.output.numel() * (size - 1) * element, o.output.numel() * (size - 1) * element};
    case Kind::all_gather: return {o.input.numel() * (size - 1) * element, o.input.numel() * (size - 1) * element};
    case Kind::broadcast: return rank == o.peer ? Traffic{o.bytes() * (size - 1), 0} : Traffic{0, o.bytes()};
    case Kind::reduce: return rank == o.peer ? Traffic{0, o.bytes() * (size - 1)} : Traffic{o.bytes(), 0};
    case Kind::all_to_all: return {to_others(o.input_counts, rank) * element, to_others(o.output_counts, rank) * element};
    case Kind::send: return {o.bytes(), 0};
    case Kind::receive: return {0, o.bytes()};
    case Kind::barrier: return {};
  }
  return {};
}

}  // namespace ingot::comm
