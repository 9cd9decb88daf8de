#include "comm/event_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>

namespace ingot::comm {
namespace {

// Sleeps are cut so that a peer's death is noticed soon.
constexpr auto kLongestSleep = std::chrono::milliseconds(50);
constexpr int kSpins = 2000;  // some ten microseconds

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

}  // namespace

void EventCounter::advance() {
  count.fetch_add(1, std::memory_order_seq_cst);
  if (sleepers.load(std::memory_order_seq_cst) > 0) futex(count, FUTEX_WAKE, INT32_MAX, nullptr);
}

bool wait_for(EventCounter& counter, uint32_t target, Deadline deadline, bool may_spin, const std::function<bool()>& give_up) {
  for (int spin = 0; spin < (may_spin ? kSpins : 1); ++spin) {
    if (has_reached(counter.now(), target)) return true;
    relax();
  }
  while (true) {
    counter.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = counter.count.load(std::memory_order_seq_cst);
    const auto left = deadline - Clock::now();
    if (!has_reached(seen, target) && left > Clock::duration::zero()) {
      const auto sleep = std::chrono::duration_cast<std::chrono::nanoseconds>(std::min<Clock::duration>(left, kLongestSleep));
      const timespec timeout{sleep.count() / 1'000'000'000, sleep.count() % 1'000'000'000};
      futex(counter.count, FUTEX_WAIT, seen, &timeout);
    }
    counter.sleepers.fetch_sub(1, std::memory_order_seq_cst);
    if (has_reached(counter.now(), target)) return true;
    if (Clock::now() >= deadline || give_up()) return false;
  }
}

}  // namespace ingot::comm
