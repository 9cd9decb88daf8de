// Prepares a loader's batches on a thread of its own.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "data/loader.h"

namespace ingot::data {

/// Prepares batches ahead on a thread of its own; what comes out is exactly what the loader gives. One thread calls get(); the
/// loader must outlive the prefetcher. Destruction stops the thread after the batch that it is at.
class Prefetcher {
 public:
  /// `depth` batches ahead (0: none, no thread), expecting each call `stride` samples behind the one before.
  Prefetcher(const Loader& loader, int64_t depth, int64_t stride);
  ~Prefetcher();

  /// The loader's batch(first_sample, count). A call that was not expected is served directly, and the ones after it are
  /// prepared from there. Rethrows what went wrong while preparing this batch.
  Batch get(int64_t first_sample, int64_t count);

 private:
  struct Ready {
    int64_t first = 0;
    Batch batch;
    std::exception_ptr error;
  };
  void run();

  const Loader& loader_;
  const int64_t depth_;
  std::mutex mutex_;
  std::condition_variable changed_;
  const int64_t stride_;
  int64_t next_ = -1, count_ = 0;  // what the thread prepares next; -1: nothing yet
  int64_t version_ = 0;            // grows when the plan changes: batches of an older plan are dropped
  std::vector<Ready> ready_;
  bool stop_ = false;
  std::jthread thread_;
};

}  // namespace ingot::data
