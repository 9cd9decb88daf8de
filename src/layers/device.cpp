#include "layers/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>

#include "base/error.h"

namespace ingot::layers {

int64_t gpus() { return at::hasCUDA() ? at::detail::getCUDAHooks().deviceCount() : 0; }

at::Device device_named(const std::string& name) {
  const bool gpu = gpus() > 0;
  if (name == "cuda" && !gpu)
    throw base::ConfigError("train.device = cuda, but this program sees no GPU; run ingot doctor, or set train.device = cpu");
  return name == "cpu" || !gpu ? at::Device(at::kCPU) : at::Device(at::kCUDA, 0);
}

}  // namespace ingot::layers
