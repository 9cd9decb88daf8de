// Ranks that are not there: a world of any size in which this rank alone computes, on a counting device. Every operation is written
// into the trace of its tensors' device, with its start and its wait, and ends at once.
//
// What others would have sent is taken to be what this rank holds: all_gather repeats the input, sums are `size` times it, a
// message received is left as it was. That is right for the sizes that ranks tell each other where all have alike.
#pragma once

#include <memory>

#include "comm/world.h"

namespace ingot::comm {

/// Rank `rank` of a world of `size`. Counters and ledger count as with real ranks.
std::unique_ptr<World> recorded_world(int rank, int size);

}  // namespace ingot::comm
