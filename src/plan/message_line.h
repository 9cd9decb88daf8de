// The cost of a message over its size, time = latency + bytes / bandwidth, from measured calls. Free of torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::plan {

struct MessageTime {
  double bytes = 0, seconds = 0;  // both positive
};

/// The line whose sum of squared relative errors is least; neither of its two terms is negative.
struct MessageLine {
  double latency_s = 0, bytes_per_s = 0;       // bytes_per_s 0: time does not grow with size
  double median_error = 0, largest_error = 0;  // |fitted / measured - 1|
  double knee_bytes = 0;                       // least size with 90 % of the best bandwidth

  double seconds(double bytes) const { return latency_s + (bytes_per_s > 0 ? bytes / bytes_per_s : 0); }
};
/// `times` ascend in bytes and are not empty.
MessageLine fitted_line(const std::vector<MessageTime>& times);

/// What bus bandwidth is of algorithm bandwidth (bytes / time) in a group of `ranks`; operations by name_of(Collective).
double bus_factor(const std::string& operation, double ranks);

}  // namespace ingot::plan
