// Tells the reader of several texts that one of them has changed.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace ingot::serve {

class Changes {
 public:
  void tell() {
    {
      const std::lock_guard lock(mutex_);
      ++count_;
    }
    changed_.notify_all();
  }
  /// How often it has been told: ask before looking at the texts.
  uint64_t count() const {
    const std::lock_guard lock(mutex_);
    return count_;
  }
  /// Waits until it has been told more often than that, no longer than `most`.
  void wait(uint64_t seen, std::chrono::milliseconds most) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, most, [&] { return count_ > seen; });
  }

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  uint64_t count_ = 0;
};

}  // namespace ingot::serve
