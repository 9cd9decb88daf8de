// Times pieces of work on a device: warm-up first, then repeats until enough are done, and their median.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

namespace ingot::bench {

struct Repeats {
  int warmup = 1, least = 3, most = 25;
  double enough_s = 0.1;  // no more repeats once this much time was measured
};

/// Waits until everything that was asked of the device is done.
void wait_for(at::Device device);

/// Seconds of one call of `work`, the device's part included.
double seconds_of(const std::function<void()>& work, at::Device device);

double median(std::vector<double> values);
double median_seconds(const std::function<void()>& work, const Repeats& repeats, at::Device device);

}  // namespace ingot::bench
