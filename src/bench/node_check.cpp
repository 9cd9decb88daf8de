#include "bench/node_check.h"

#include "bench/operations.h"
#include "bench/stopwatch.h"

namespace ingot::bench {
namespace {

constexpr Repeats kRepeats{2, 5, 50, 0.2, 2};
constexpr int64_t kSide = 8192, kCopyBytes = int64_t{256} << 20;

}  // namespace

double copy_rate(const at::Tensor& from, at::Tensor to, at::Device device) {
  const double seconds = median_seconds([&] { to.copy_(from, /*non_blocking=*/true); }, kRepeats, device);
  return static_cast<double>(from.nbytes()) / seconds;
}

TransferRates measure_for_verdict(at::Device device, plan::MachineProfile& profile) {
  if (device.is_cpu()) return {};
  profile.gemm.push_back(measure_gemm("bf16", plan::Pass::forward, kSide, kSide, kSide, kRepeats, device));
  const auto host = at::ones({kCopyBytes}, at::kByte).pin_memory();
  const auto on_device = at::ones({kCopyBytes}, at::TensorOptions().dtype(at::kByte).device(device));
  return {.host_to_device = copy_rate(host, on_device, device), .device_to_host = copy_rate(on_device, host, device)};
}

}  // namespace ingot::bench
