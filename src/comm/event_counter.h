// A counter in memory that threads or processes share: one side raises it, others wait until it has reached a value. Waiting
// spins for a moment and then sleeps in the kernel (futex), so a hundred ranks may share two cores.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "comm/operation.h"

namespace ingot::comm {

struct EventCounter {
  std::atomic<uint32_t> count{0};
  std::atomic<uint32_t> sleepers{0};

  uint32_t now() const { return count.load(std::memory_order_acquire); }
  void advance();  // count += 1, and wakes whoever sleeps
};

/// True when a has come to b or beyond; counters may wrap.
inline bool has_reached(uint32_t a, uint32_t b) { return static_cast<int32_t>(a - b) >= 0; }

/// Waits until counter has reached `target`; false at the deadline. `give_up` is asked now and then and ends the wait when true.
bool wait_for(EventCounter& counter, uint32_t target, Deadline deadline, bool may_spin, const std::function<bool()>& give_up);

}  // namespace ingot::comm
