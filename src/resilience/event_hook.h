// Tells others what happens to a run: for each new line of its events.jsonl (base/run_events.h), whoever wrote it, a command is run.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ingot::resilience {

class EventHook {
 public:
  /// `command`, for sh, finds the event in $INGOT_EVENT, one JSON object, and has `limit_s` for it; one at a time, in the order of events.
  /// `run_directory`: asked from another thread, "" as long as it is not known.
  EventHook(std::string command, std::function<std::string()> run_directory, double limit_s = 30);
  /// Tells what has been written until now.
  ~EventHook();
  EventHook(const EventHook&) = delete;

 private:
  void watch();
  void tell_news();
  void run(const std::string& event) const;

  std::string command_;
  std::function<std::string()> run_directory_;
  double limit_s_, began_s_;
  std::string known_of_;  // the run whose events are counted
  size_t known_ = 0;
  int64_t size_ = -1;  // of the file when it was read
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_ending_ = false;
  std::thread thread_;
};

}  // namespace ingot::resilience
