#include "checkpoint/ranks/balance.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <unordered_map>

namespace ingot::checkpoint {
namespace {

// Ranks that can do the same tasks, by how much they have already. Loads only grow, so an entry that is out of date is put back with
// what is true now.
class Candidates {
 public:
  Candidates(const uint32_t* begin, const uint32_t* end) {
    for (const uint32_t* rank = begin; rank != end; ++rank) least_.push({0, *rank});
  }
  uint32_t least_loaded(const std::vector<int64_t>& loads) {
    while (true) {
      const auto [load, rank] = least_.top();
      if (load == loads[rank]) return rank;
      least_.pop();
      least_.push({loads[rank], rank});
    }
  }

 private:
  using Entry = std::pair<int64_t, uint32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> least_;
};

// Sets of candidates that tasks have in common.
class Sets {
 public:
  Sets(const std::vector<Task>& tasks, const std::vector<uint32_t>& ranks) : tasks_(tasks), ranks_(ranks) {}
  Candidates& of(uint32_t task) {
    const auto& t = tasks_[task];
    const uint32_t *begin = ranks_.data() + t.begin, *end = ranks_.data() + t.end;
    uint64_t hash = t.candidates();
    for (const uint32_t* rank = begin; rank != end; ++rank) {
      hash = (hash ^ *rank) * 0x9E3779B97F4A7C15u;
      hash ^= hash >> 29;
    }
    auto& same_hash = by_hash_[hash];
    for (auto& [example, candidates] : same_hash) {
      const auto& other = tasks_[example];
      if (std::equal(begin, end, ranks_.data() + other.begin, ranks_.data() + other.end)) return candidates;
    }
    return same_hash.emplace_back(task, Candidates(begin, end)).second;
  }

 private:
  const std::vector<Task>& tasks_;
  const std::vector<uint32_t>& ranks_;
  std::unordered_map<uint64_t, std::vector<std::pair<uint32_t, Candidates>>> by_hash_;
};

}  // namespace

std::vector<uint32_t> deal_out(const std::vector<Task>& tasks, const std::vector<uint32_t>& ranks, size_t rank_count) {
  std::vector<uint32_t> order(tasks.size()), chosen(tasks.size());
  std::iota(order.begin(), order.end(), 0u);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    const auto &x = tasks[a], &y = tasks[b];
    if (x.candidates() != y.candidates()) return x.candidates() < y.candidates();
    return x.bytes != y.bytes ? x.bytes > y.bytes : a < b;
  });
  std::vector<int64_t> loads(rank_count, 0);
  Sets sets(tasks, ranks);
  for (const uint32_t task : order) {
    const auto& t = tasks[task];
    uint32_t place = t.begin;
    if (t.candidates() > 1) {
      const uint32_t rank = sets.of(task).least_loaded(loads);
      while (ranks[place] != rank) ++place;
    }
    loads[ranks[place]] += t.bytes;
    chosen[task] = place;
  }
  return chosen;
}

}  // namespace ingot::checkpoint
