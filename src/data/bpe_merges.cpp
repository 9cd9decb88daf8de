#include "data/bpe_merges.h"

#include <algorithm>
#include <array>
#include <bit>
#include <queue>

namespace ingot::data {
namespace {

constexpr size_t kFew = 48;  // up to here a scan over all ranks is faster than a queue

// A pair that had a merge when it was put into the queue.
struct Candidate {
  int32_t rank = 0, result = 0, at = 0;
  bool operator<(const Candidate& other) const {  // the queue gives the largest: lowest rank, then leftmost
    return rank != other.rank ? rank > other.rank : at > other.at;
  }
};

struct Neighbours {
  int32_t previous = -1, next = -1;
};

}  // namespace

BpeMerges::BpeMerges(const std::vector<BpeMerge>& merges) {
  const size_t size = std::bit_ceil(std::max<size_t>(2 * merges.size(), 16));
  shift_ = 64 - std::countr_zero(size);
  entries_.resize(size);
  for (const BpeMerge& merge : merges) {
    const uint64_t pair = pair_of(merge.left, merge.right);
    entries_[slot_of(pair)] = {pair, merge.rank, merge.result};
  }
}

size_t BpeMerges::apply(std::span<int32_t> ids) const {
  if (ids.size() < 2) return ids.size();
  return ids.size() <= kFew ? apply_to_few(ids) : apply_to_many(ids);
}

size_t BpeMerges::apply_to_few(std::span<int32_t> ids) const {
  std::array<int32_t, kFew> ranks, results;  // of each id with its right neighbour
  size_t pairs = ids.size() - 1;
  const auto look_up = [&](size_t at) {
    const Entry& entry = find(ids[at], ids[at + 1]);
    ranks[at] = entry.rank;
    results[at] = entry.result;
  };
  for (size_t i = 0; i < pairs; ++i) look_up(i);
  while (pairs > 0) {
    size_t best = 0;
    for (size_t i = 1; i < pairs; ++i) best = ranks[i] < ranks[best] ? i : best;
    if (ranks[best] == kNone) break;
    ids[best] = results[best];
    std::copy(ids.begin() + static_cast<std::ptrdiff_t>(best) + 2, ids.begin() + static_cast<std::ptrdiff_t>(pairs) + 1,
              ids.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    for (size_t i = best + 1; i + 1 < pairs; ++i) ranks[i] = ranks[i + 1], results[i] = results[i + 1];
    --pairs;
    if (best < pairs) look_up(best);
    if (best > 0) look_up(best - 1);
  }
  return pairs + 1;
}

size_t BpeMerges::apply_to_many(std::span<int32_t> ids) const {
  const auto count = static_cast<int32_t>(ids.size());
  std::vector<Neighbours> around(ids.size());
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t at) {
    const int32_t next = at < 0 ? -1 : around[static_cast<size_t>(at)].next;
    if (next < 0) return;
    const Entry& entry = find(ids[static_cast<size_t>(at)], ids[static_cast<size_t>(next)]);
    if (entry.rank != kNone) queue.push({entry.rank, entry.result, at});
  };
  for (int32_t i = 0; i < count; ++i) around[static_cast<size_t>(i)] = {i - 1, i + 1 < count ? i + 1 : -1};
  for (int32_t i = 0; i < count; ++i) consider(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    auto& left = ids[static_cast<size_t>(best.at)];
    auto& [previous, next] = around[static_cast<size_t>(best.at)];
    if (left < 0 || next < 0) continue;
    const Entry& now = find(left, ids[static_cast<size_t>(next)]);
    if (now.rank != best.rank || now.result != best.result) continue;  // a neighbour has changed since
    left = best.result;
    ids[static_cast<size_t>(next)] = -1;
    next = around[static_cast<size_t>(next)].next;
    if (next >= 0) around[static_cast<size_t>(next)].previous = best.at;
    consider(previous);
    consider(best.at);
  }
  return static_cast<size_t>(std::remove(ids.begin(), ids.end(), -1) - ids.begin());
}

}  // namespace ingot::data
