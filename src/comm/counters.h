// Calls and bytes of every axis and kind of operation, of groups of more than one rank, as operation.h's traffic_of counts them. Any thread may add and read.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "comm/operation.h"

namespace ingot::comm {

struct AxisTraffic {
  int64_t calls = 0, sent_bytes = 0, received_bytes = 0;
  bool operator==(const AxisTraffic&) const = default;
};

class Counters {
 public:
  void add(const std::string& axis, Kind kind, const Traffic& traffic) {
    const std::lock_guard lock(mutex_);
    add_to(axes_[axis][kind], {1, traffic.sent_bytes, traffic.received_bytes});
  }
  /// How long this rank's threads stood still for operations.
  void add_wait(double seconds) {
    const std::lock_guard lock(mutex_);
    waited_s_ += seconds;
  }
  double waited_s() const {
    const std::lock_guard lock(mutex_);
    return waited_s_;
  }
  /// Since the start, by axis.
  std::map<std::string, AxisTraffic> totals() const {
    const std::lock_guard lock(mutex_);
    std::map<std::string, AxisTraffic> sums;
    for (const auto& [axis, kinds] : axes_)
      for (const auto& [kind, traffic] : kinds) add_to(sums[axis], traffic);
    return sums;
  }
  /// Of all axes, by kind of operation.
  std::map<Kind, AxisTraffic> by_kind() const {
    const std::lock_guard lock(mutex_);
    std::map<Kind, AxisTraffic> sums;
    for (const auto& [axis, kinds] : axes_)
      for (const auto& [kind, traffic] : kinds) add_to(sums[kind], traffic);
    return sums;
  }

 private:
  static void add_to(AxisTraffic& sum, const AxisTraffic& more) {
    sum.calls += more.calls;
    sum.sent_bytes += more.sent_bytes;
    sum.received_bytes += more.received_bytes;
  }
  mutable std::mutex mutex_;
  std::map<std::string, std::map<Kind, AxisTraffic>> axes_;
  double waited_s_ = 0;
};

}  // namespace ingot::comm
