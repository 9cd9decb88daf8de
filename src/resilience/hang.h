// Which rank the others wait for, told from what each of them did last.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/heartbeat.h"
#include "resilience/divergence.h"

namespace ingot::resilience {

struct WatchedRank {
  int rank = 0;
  comm::Pulse pulse;
  char state = 'R';      // of its process, as /proc/PID/stat has it
  double stopped_s = 0;  // since when that has been seen stopped
};

struct HangLimits {
  double silence_s = -1;     // without a beat; 0: nobody is watched; negative: 120, or 20 times the longest gap that a rank had before
  bool is_whole_job = true;  // false: other machines have ranks, too, and watch those themselves
};

struct Hang {
  int rank = -1;            // -1: all wait, and none of them alone is at fault
  std::string description;  // "rank 2 (process 71) hangs in step 12: …"
  double silent_s = 0;      // since its last sign of life
};

/// Nothing while every rank that is watched has beaten within the limit. A rank is watched while it is settled, and while it is stopped. Of
/// ranks that are silent one that is stopped is meant, else one that does not wait for others, else, where all wait, the one that left the
/// common path, as `divergence` says, else the two ends of a message of which only one is at it, else one that waits in another operation
/// than most.
std::optional<Hang> find_hang(const std::vector<WatchedRank>& ranks, const HangLimits& limits,
                              const std::function<std::optional<Divergence>()>& divergence = {});

}  // namespace ingot::resilience
