// Calls and bytes of every axis, as operation.h's traffic_of counts them. Any thread may add and read.
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
  void add(const std::string& axis, const Traffic& traffic) {
    const std::lock_guard lock(mutex_);
    auto& total = axes_[axis];
    ++total.calls;
    total.sent_bytes += traffic.sent_bytes;
    total.received_bytes += traffic.received_bytes;
  }
  /// Since the start, by axis.
  std::map<std::string, AxisTraffic> totals() const {
    const std::lock_guard lock(mutex_);
    return axes_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, AxisTraffic> axes_;
};

}  // namespace ingot::comm
