#include "device/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>

#include "base/error.h"
#include "base/machine.h"
#include "base/process.h"
#include "device/gpu_library.h"
#include "device/virtual_device.h"

namespace ingot::device {

int64_t gpus() { return gpu_library().has_torch && at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0; }

at::Device device_named(const std::string& name) {
  if (name == "emulated") return emulated_device(0);
  if (name == "cpu") return at::kCPU;
  const bool gpu = gpus() > 0;
  if (name == "cuda" && !gpu)
    throw base::ConfigError("train.device = cuda, but this program sees no GPU{}; run ingot doctor, or set train.device = cpu",
                            gpu_library().problem.empty() ? "" : ": " + gpu_library().problem);
  if (!gpu) return at::kCPU;
  at::globalContext().lazyInitDevice(at::kCUDA);  // the allocator, which is asked for its peak before the first tensor, is ready after it
  return c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
}

at::Device device_of_rank(const std::string& name, int64_t local_rank) {
  const auto device = device_named(name);
  if (!device.is_cuda()) return device;
  if (local_rank >= gpus())
    throw base::ConfigError(
        "rank {} of this machine has no GPU: the program sees {}; start as many ranks as it has GPUs, or look at CUDA_VISIBLE_DEVICES",
        local_rank, gpus());
  const c10::impl::VirtualGuardImpl guard(at::kCUDA);
  guard.setDevice(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank)));
  return guard.getDevice();
}

int64_t peak_memory_bytes(at::Device device) {
  if (device.is_cpu()) return base::peak_resident_bytes();
  if (is_virtual(device)) return memory_use(device).peak_bytes;
  auto& allocator = *at::getDeviceAllocator(device.type());
  const auto kinds = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  const auto reserved = allocator.getDeviceStats(device.index()).reserved_bytes[kinds];
  const auto [free_bytes, all_bytes] = allocator.getMemoryInfo(device.index());
  return reserved.peak + std::max<int64_t>(0, static_cast<int64_t>(all_bytes - free_bytes) - reserved.current);
}

void reset_peak_memory(at::Device device) {
  if (device.is_cpu()) base::reset_peak_memory();
  else if (is_virtual(device)) reset_peak(device);
  else at::getDeviceAllocator(device.type())->resetPeakStats(device.index());
}

int64_t memory_bytes(at::Device device) {
  if (is_emulated(device) && emulated_memory_bytes() > 0) return emulated_memory_bytes();
  if (device.is_cuda()) return static_cast<int64_t>(at::getDeviceAllocator(device.type())->getMemoryInfo(device.index()).second);
  const int64_t all = base::total_memory_bytes(), limit = base::memory_limit_bytes();
  return limit > 0 ? std::min(all, limit) : all;
}

at::Tensor to_device(const at::Tensor& host, at::Device device) {
  if (device.is_cpu()) return host;
  if (is_counting(device)) return host.to(device, /*non_blocking=*/true);
  const auto staged = at::empty(host.sizes(), host.options().pinned_memory(device.is_cuda()));
  staged.copy_(host);
  return staged.to(device, /*non_blocking=*/true);
}

bool is_out_of_memory(const std::exception& failure) {
  return dynamic_cast<const base::OutOfMemoryError*>(&failure) || dynamic_cast<const c10::OutOfMemoryError*>(&failure) ||
         dynamic_cast<const std::bad_alloc*>(&failure);
}

bool is_cpu(at::Device device) { return is_virtual(device) ? target_of(device) != Target::gpu : device.is_cpu(); }
bool is_gpu(at::Device device) { return is_virtual(device) ? target_of(device) != Target::cpu : device.is_cuda(); }

}  // namespace ingot::device
