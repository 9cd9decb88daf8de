// Which device a run computes on, and whose kernels run there.
//
// Besides the CPU and GPUs there are two devices of ingot's own (virtual_device.h): an emulated one, which computes on the host
// without being the host, and a counting one, which has shapes and no data. Code that chooses a kernel asks is_cpu() and is_gpu()
// below, never at::Tensor::is_cpu() or is_cuda(): the counting device answers for the machine that it stands for.
#pragma once

#include <exception>
#include <string>

#include "device/aten.h"

namespace ingot::device {

/// GPUs that this program can use; 0 in a CPU build.
int64_t gpus();

/// "auto" (the first GPU, else the CPU), "cpu", "cuda" (also AMD's, under ROCm) or "emulated" (for tests: emulated_device(0)).
/// Throws ConfigError for "cuda" without a GPU.
at::Device device_named(const std::string& name);

/// The same for one of a machine's ranks: GPU `local_rank` of those that are visible, which is what "cuda" means from now on, on this
/// thread. Throws ConfigError where there are fewer.
at::Device device_of_rank(const std::string& name, int64_t local_rank);

/// The most memory that was in use since the last reset, in bytes. CPU: resident memory of the process. GPU: what torch took of it and what
/// the driver and other programs hold. Virtual devices: storages.
int64_t peak_memory_bytes(at::Device device);
void reset_peak_memory(at::Device device);

/// What there is of it, in bytes. CPU: of the machine, or what a control group lets the process have. An emulated device has the host's, or
/// INGOT_EMULATED_MEMORY_MIB.
int64_t memory_bytes(at::Device device);
/// A host's tensor on `device`, for what the current stream does next: through pinned memory, so that the host, which may drop or change
/// its own at once, does not wait for that stream. On a CPU it is the tensor itself.
at::Tensor to_device(const at::Tensor& host, at::Device device);
/// Whether it says that a device or the host has no memory left.
bool is_out_of_memory(const std::exception& failure);

/// Whether fused kernels run here as on the CPU: on it, and on a counting device that stands for one or for a GPU that has them too.
bool is_cpu(at::Device device);
inline bool is_cpu(const at::Tensor& tensor) { return is_cpu(tensor.device()); }
/// Whether this is a GPU: on CUDA and ROCm, on the emulated device, and on a counting device that stands for a GPU.
bool is_gpu(at::Device device);
inline bool is_gpu(const at::Tensor& tensor) { return is_gpu(tensor.device()); }

}  // namespace ingot::device
