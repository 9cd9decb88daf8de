// Runs a program of several ranks on paper: when each operation begins and ends if every stream does one thing at a time, a collective
// begins when its last member is there and a message when both ends are. A pure function.
#pragma once

#include <array>
#include <functional>

#include "schedule/operation_list.h"

namespace ingot::schedule {

struct Span {
  double begin_s = 0, end_s = 0;
};

struct RankReplay {
  std::vector<Span> spans;                // of its operations
  std::array<double, kStreams> busy_s{};  // by stream; waiting for others does not count
};

struct Replay {
  double time_s = 0;
  /// What messages, and waiting for others, add to the time that the rank with most to compute needs for that alone.
  double exposed_s = 0;
  std::vector<RankReplay> ranks;
};

/// A stream is busy for so long; what was sent is there so much later.
struct Duration {
  Duration(double busy_seconds, double latency_seconds = 0) : busy_s(busy_seconds), latency_s(latency_seconds) {}
  double busy_s, latency_s;
};
using Durations = std::function<Duration(const Operation& operation)>;

/// Collectives of a group are matched in the order in which each member lists them, messages in that of each pair of ranks. Throws
/// CommError when operations do not match, or wait for each other in a circle.
Replay replay(const Program& program, const Durations& durations);

}  // namespace ingot::schedule
