#include "bench/stopwatch.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>

#include "base/process.h"

namespace ingot::bench {
namespace {

constexpr double kToleratedWait = 0.05;  // share of a sample that its threads may have waited for cores

}  // namespace

void wait_for(at::Device device) {
  if (!device.is_cpu()) c10::impl::VirtualGuardImpl(device.type()).synchronizeDevice(device.index());
}

double seconds_of(const std::function<void()>& work, at::Device device) {
  wait_for(device);
  const auto start = std::chrono::steady_clock::now();
  work();
  wait_for(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

double Samples::add(const std::function<void()>& work, at::Device device) {
  const double waited_before = base::waiting_for_cores_seconds();
  const double seconds = seconds_of(work, device);
  const double waited = base::waiting_for_cores_seconds() - waited_before;
  const bool clean = waited <= kToleratedWait * seconds;
  (clean ? clean_ : disturbed_).push_back(seconds);
  clean_s_ += clean ? seconds : 0;
  all_s_ += seconds;
  return seconds;
}

bool Samples::enough(const Repeats& repeats) const {
  const auto clean = static_cast<int>(clean_.size()), all = clean + static_cast<int>(disturbed_.size());
  if (clean >= repeats.least && (clean >= repeats.most || clean_s_ >= repeats.enough_s)) return true;
  return all >= repeats.least && all_s_ >= repeats.give_up_s;
}

double Samples::result() const { return clean_.empty() ? *std::min_element(disturbed_.begin(), disturbed_.end()) : median(clean_); }

double median_seconds(const std::function<void()>& work, const Repeats& repeats, at::Device device) {
  for (int i = 0; i < repeats.warmup; ++i) work();
  Samples samples;
  while (!samples.enough(repeats)) samples.add(work, device);
  return samples.result();
}

}  // namespace ingot::bench
