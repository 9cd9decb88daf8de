// Looks at what the machine counts of its own faults while a job runs, and says what is new: beside the job, on a thread of its own, since
// a broken driver may take its time to answer.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "health/hardware_counters.h"

namespace ingot::resilience {

/// Which rises of counters are worth a word: the first of each, and what has come together since when some time has passed.
class HardwareNews {
 public:
  static constexpr double kQuiet_s = 600;
  std::vector<health::HardwareFinding> take(const health::HardwareReading& now, double now_s);

 private:
  using Key = std::pair<health::Counted, std::string>;
  std::map<Key, double> said_;   // values that were spoken of, or were there at first
  std::map<Key, double> until_;  // silence
};

class HardwareWatch {
 public:
  struct Options {
    double every_s = 10;
    std::string root = "/";  // of /sys and /proc
    std::string gpu_library = "libnvidia-ml.so.1";
    std::function<std::vector<int64_t>()> processes = [] { return std::vector<int64_t>(); };  // of the job, besides this one
  };
  /// `on_finding` is called on the watch's thread.
  HardwareWatch(Options options, std::function<void(const health::HardwareFinding&)> on_finding);
  /// Nothing is called from here on. A driver that does not answer is not waited for.
  ~HardwareWatch();
  HardwareWatch(const HardwareWatch&) = delete;

  /// What rises from here on explains this attempt.
  void begin_attempt();
  /// "this machine has counted meanwhile: 1 processes killed since memory was short", or "". Of the kernel's counters now, and the GPUs' as
  /// they were seen last.
  std::string explain() const;
  /// "others use 1.4 of its 2 cores", when that is much, or "".
  std::string foreign_load() const;
  health::HardwareReading last() const;

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's, too
};

}  // namespace ingot::resilience
