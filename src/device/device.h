// Which device a run computes on, and whose kernels run there.
//
// Besides the CPU and GPUs there are two devices of ingot's own (virtual_device.h): an emulated one, which computes on the host
// without being the host, and a counting one, which has shapes and no data. Code that chooses a kernel asks is_cpu() and is_gpu()
// below, never at::Tensor::is_cpu() or is_cuda(): the counting device answers for the machine that it stands for.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace ingot::device {

/// GPUs that this program can use; 0 in a CPU build.
int64_t gpus();

/// "auto" (the first GPU, else the CPU), "cpu", "cuda" (also AMD's, under ROCm) or "emulated" (for tests: emulated_device(0)).
/// Throws ConfigError for "cuda" without a GPU.
at::Device device_named(const std::string& name);

/// Makes GPU `index` (of those that are visible, in turn) the one that "cuda" means from now on, on this thread.
void use_gpu(int64_t index);

/// Whether fused kernels run here as on the CPU: on it, and on a counting device that stands for one or for a GPU that has them too.
bool is_cpu(at::Device device);
inline bool is_cpu(const at::Tensor& tensor) { return is_cpu(tensor.device()); }
/// Whether this is a GPU: on CUDA and ROCm, on the emulated device, and on a counting device that stands for a GPU.
bool is_gpu(at::Device device);
inline bool is_gpu(const at::Tensor& tensor) { return is_gpu(tensor.device()); }

}  // namespace ingot::device
