#include "health/node_measurements.h"

#include "bench/operations.h"
#include "bench/stopwatch.h"

namespace ingot::health {
namespace {

constexpr bench::Repeats kRepeats{2, 5, 50, 0.2, 2};
constexpr int64_t kSide = 8192, kCopyBytes = int64_t{256} << 20;

}  // namespace

TransferRates measure_for_verdict(at::Device device, plan::MachineProfile& profile) {
  if (device.is_cpu()) return {};
  profile.gemm.push_back(bench::measure_gemm("bf16", plan::Pass::forward, kSide, kSide, kSide, kRepeats, device));
  const auto rate = [&](const char* operation) { return bench::measure_transfer(operation, kCopyBytes, kRepeats, device).bytes_per_s; };
  return {.host_to_device = rate("host_to_device_pinned"), .device_to_host = rate("device_to_host_pinned")};
}

}  // namespace ingot::health
