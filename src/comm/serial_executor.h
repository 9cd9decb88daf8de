// Runs blocking operations one after another on a thread of its own, which starts with the first that is not waited for at
// once. An operation that is waited for at once runs on the caller's thread when nothing is before it: no hand-over.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "comm/work.h"

namespace ingot::comm {

class SerialExecutor {
 public:
  SerialExecutor() = default;
  /// Finishes what is under way, drops the rest.
  ~SerialExecutor();
  SerialExecutor(const SerialExecutor&) = delete;

  Work run(std::function<void()> operation, bool blocking);

 private:
  class Job;
  void work();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> queue_;
  bool is_busy_ = false, is_closing_ = false;
  std::thread thread_;
};

}  // namespace ingot::comm
