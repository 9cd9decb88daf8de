// What all ranks of a machine do, for Prometheus, and a way to ask a job to stop, at http://HOST:PORT: GET /metrics, POST /drain.
// Everything is read from the heartbeats when it is asked for, so ranks that hang are shown, too.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "comm/heartbeat.h"
#include "health/hardware_counters.h"
#include "resilience/retry_policy.h"

namespace ingot::resilience {

class LaunchPage {
 public:
  /// `address`: HOST:PORT; ":PORT" for every interface. Listens from here on, for as long as `heartbeats` lives. Throws UsageError when
  /// that is malformed or taken.
  LaunchPage(const std::string& address, const comm::HeartbeatBoard& heartbeats, int ranks,
             std::function<health::HardwareReading()> hardware);
  ~LaunchPage();
  LaunchPage(const LaunchPage&) = delete;

  int port() const;
  /// An attempt with ranks from this one on, of so many nodes.
  void begin(int first_rank, int64_t nodes);
  void count_failure(Cause cause);
  void count_restart();
  /// Whether somebody asked for it.
  bool is_asked_to_drain() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ingot::resilience
