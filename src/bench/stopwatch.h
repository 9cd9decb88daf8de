// Times pieces of work on a device: warm-up first, then repeats until enough are done, and their median. Repeats during which
// this process had to wait for a core are set aside when there are others: on a shared machine they say nothing about it.
#pragma once

#include <functional>
#include <vector>

#include "device/aten.h"

namespace ingot::bench {

struct Repeats {
  int warmup = 1, least = 3, most = 25;
  double enough_s = 0.1;  // no more repeats once this much undisturbed time was measured
  double give_up_s = 1;   // nor after this long, however disturbed
};

/// Waits until everything that was asked of the device is done.
void wait_for(at::Device device);

/// Seconds of one call of `work`, the device's part included.
double seconds_of(const std::function<void()>& work, at::Device device);

/// The times of repeats of one thing.
class Samples {
 public:
  /// Runs `work` once and keeps its time. Returns it.
  double add(const std::function<void()>& work, at::Device device);
  bool enough(const Repeats& repeats) const;
  /// Median of the undisturbed ones; the shortest when all were disturbed.
  double result() const;

 private:
  std::vector<double> clean_, disturbed_;
  double clean_s_ = 0, all_s_ = 0;
};

double median(std::vector<double> values);
double median_seconds(const std::function<void()>& work, const Repeats& repeats, at::Device device);

}  // namespace ingot::bench
