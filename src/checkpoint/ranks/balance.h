// Work that any of several ranks can do, dealt out so that all have much the same: pieces that several ranks hold when they save, or
// want when they load. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ingot::checkpoint {

/// One piece of work and who can do it: ranks[begin, end) of a shared list, ascending.
struct Task {
  int64_t bytes = 0;
  uint32_t begin = 0, end = 0;
  uint32_t candidates() const { return end - begin; }
};

/// For each task the place within `ranks` of who does it. Tasks with the fewest candidates are dealt out first, then the largest, each
/// to the candidate with the fewest bytes so far: when all can do all, nobody has more than the average and one task more. N·log N;
/// the same for the same input.
std::vector<uint32_t> deal_out(const std::vector<Task>& tasks, const std::vector<uint32_t>& ranks, size_t rank_count);

}  // namespace ingot::checkpoint
