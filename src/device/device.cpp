#include "device/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "base/error.h"
#include "device/virtual_device.h"

namespace ingot::device {

int64_t gpus() { return at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0; }

at::Device device_named(const std::string& name) {
  const bool gpu = gpus() > 0;
  if (name == "emulated") return emulated_device(0);
  if (name == "cuda" && !gpu)
    throw base::ConfigError("train.device = cuda, but this program sees no GPU; run ingot doctor, or set train.device = cpu");
  return name == "cpu" || !gpu ? at::Device(at::kCPU) : c10::impl::VirtualGuardImpl(at::kCUDA).getDevice();
}

void use_gpu(int64_t index) {
  if (gpus() > 0) c10::impl::VirtualGuardImpl(at::kCUDA).setDevice(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(index % gpus())));
}

bool is_cpu(at::Device device) { return is_virtual(device) ? target_of(device) != Target::gpu : device.is_cpu(); }
bool is_gpu(at::Device device) { return is_virtual(device) ? target_of(device) != Target::cpu : device.is_cuda(); }

}  // namespace ingot::device
