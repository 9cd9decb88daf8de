// Steps on their way to a tracker (MLflow, Trackio). The trainer's thread hands them over and never waits; the tracker's own thread
// takes them in batches. A step that finds the queue full is dropped and counted.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "train/metrics/scalar.h"

namespace ingot::train {

class StepQueue {
 public:
  explicit StepQueue(size_t most_waiting) : most_waiting_(most_waiting) {}

  /// Returns at once.
  void push(StepScalars step);
  /// The oldest steps, as many as have `most_scalars` together, at least one; waits for it. None once it is closed and empty.
  std::vector<StepScalars> take(size_t most_scalars);
  /// No more steps will come: take() waits no longer.
  void close();

  /// Counts steps that were taken and could not be delivered.
  void drop(size_t steps) { dropped_ += static_cast<int64_t>(steps); }
  /// Steps that were not delivered.
  int64_t dropped() const { return dropped_; }

 private:
  const size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepScalars> waiting_;
  bool is_closed_ = false;
  std::atomic<int64_t> dropped_ = 0;
};

}  // namespace ingot::train
