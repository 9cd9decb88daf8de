#include "bench/stopwatch.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <chrono>

namespace ingot::bench {

void wait_for(at::Device device) {
  if (device.is_cuda()) at::detail::getCUDAHooks().deviceSynchronize(device.index());
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

double median_seconds(const std::function<void()>& work, const Repeats& repeats, at::Device device) {
  for (int i = 0; i < repeats.warmup; ++i) work();
  std::vector<double> times;
  double sum = 0;
  while (static_cast<int>(times.size()) < repeats.least || (static_cast<int>(times.size()) < repeats.most && sum < repeats.enough_s)) {
    times.push_back(seconds_of(work, device));
    sum += times.back();
  }
  return median(std::move(times));
}

}  // namespace ingot::bench
