// For tests of ranks that do not come: such a rank stays away until the others have given up, not for a time that is sure to be longer.
// It counts threads and forked processes alike, so it is made before the ranks are.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <new>
#include <stdexcept>
#include <thread>

namespace ingot::comm {

class Departures {
 public:
  Departures() {
    void* shared = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) throw std::runtime_error("no shared memory");
    count_ = new (shared) std::atomic<int>(0);
  }
  ~Departures() { munmap(count_, sizeof *count_); }
  Departures(const Departures&) = delete;
  Departures& operator=(const Departures&) = delete;

  /// In the scope of a rank that gives up.
  class Leaving {
   public:
    explicit Leaving(Departures& departures) : departures_(departures) {}
    ~Leaving() { departures_.count_->fetch_add(1); }
    Leaving(const Leaving&) = delete;
    Leaving& operator=(const Leaving&) = delete;

   private:
    Departures& departures_;
  };

  /// Throws where they have not left after a minute.
  void wait_for(int ranks) const {
    for (const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1); *count_ < ranks;) {
      if (std::chrono::steady_clock::now() > end) throw std::runtime_error("the others still wait after a minute");
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

 private:
  std::atomic<int>* count_;
};

}  // namespace ingot::comm
