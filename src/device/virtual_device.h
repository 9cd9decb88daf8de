// The two devices of ingot's own, both under libtorch's dispatch key PrivateUse1.
//
// Emulated: memory that no host code may touch (an address that faults), with the CPU's kernels underneath. It stands for a GPU: code
// takes a GPU's paths, host tensors beside its own are errors, reads by the host are seen, and its streams put work off until it is asked
// for, so that a missing wait gives wrong numbers (stream.h). What it computes in fp64 is what the CPU computes, to the last bit.
//
// Counting: addresses without memory, shapes by libtorch's Meta kernels. A step of any model for any machine runs in milliseconds; a
// Tracer (tracer.h) writes down what it does. Where the host reads a tensor, it reads what was declared as its contents, small
// integer tensors that it copied there itself, an even spread for bincount, else ones and zeros.
//
// Both exist from the first call on. A device index belongs to one rank: ranks that are threads of a process take one each, since
// autograd has one thread per device.
#pragma once

#include <optional>

#include "device/aten.h"

namespace ingot::device {

/// The machine whose kernels run, or are counted: a CPU with ingot's fused kernels; a GPU with what ingot runs there today, ATen's
/// operations; a GPU that has fused kernels for whatever the CPU has them for.
enum class Target { cpu, gpu, fused_gpu };

constexpr int kEmulatedDevices = 16, kCountingDevices = 4;

/// Index 0 to kEmulatedDevices - 1, by rank.
at::Device emulated_device(int index);
/// INGOT_EMULATED_MEMORY_MIB; 0: as much as the host has. Throws ConfigError when that is no number.
int64_t emulated_memory_bytes();

/// A counting device, while this lives. Tensors on it must not outlive it. Throws Error when kCountingDevices are in use.
class CountingDevice {
 public:
  /// `expert_load`: how many times the even share of the rows the experts of this rank are sent.
  explicit CountingDevice(Target target = Target::gpu, double expert_load = 1);
  ~CountingDevice();
  CountingDevice(const CountingDevice&) = delete;
  CountingDevice& operator=(const CountingDevice&) = delete;
  at::Device device() const { return device_; }

 private:
  at::Device device_;
};

inline bool is_virtual(at::Device device) { return device.type() == at::DeviceType::PrivateUse1; }
bool is_emulated(at::Device device);
bool is_counting(at::Device device);
inline bool is_counting(const at::Tensor& tensor) { return is_virtual(tensor.device()) && is_counting(tensor.device()); }
/// Of a virtual device.
Target target_of(at::Device device);
/// Of a counting device; 1 elsewhere.
double expert_load(at::Device device);

/// Of a virtual device, in bytes of storages; an allocator's rounding comes on top.
struct MemoryUse {
  int64_t allocated_bytes = 0, peak_bytes = 0, allocations = 0;
};
MemoryUse memory_use(at::Device device);
/// The peak is from now on what is allocated now.
void reset_peak(at::Device device);

/// How much more than at its construction was allocated at once since then. The device's own peak goes on.
class PeakSince {
 public:
  explicit PeakSince(at::Device device);
  ~PeakSince();
  PeakSince(const PeakSince&) = delete;
  PeakSince& operator=(const PeakSince&) = delete;
  int64_t bytes() const;

 private:
  at::Device device_;
  int64_t peak_before_, allocated_before_;
};

/// The same memory of an emulated device as the host's, when the current stream has come here: for code that takes the place of a device's
/// own (transports). It keeps the memory alive.
at::Tensor host_view(const at::Tensor& tensor);

/// Counting device: what the host will read in `tensor`, which must be contiguous. Nothing elsewhere.
void declare_contents(const at::Tensor& tensor, const at::Tensor& host);
/// What was declared, or copied there; nothing where it is not known or is not on a counting device.
std::optional<at::Tensor> contents_of(const at::Tensor& tensor);

/// For ingot's own kernels, after they allocated their results and work areas: true on a counting device, which has now written down
/// `kernel` (a name that lives as long as the program) and has nothing to compute. Undefined tensors are left out.
bool counted(const char* kernel, at::TensorList inputs, at::TensorList outputs, double flops);
/// The same for kernels that compute on an emulated device by host views: writes down, whatever the virtual device.
void note(const char* kernel, at::TensorList inputs, at::TensorList outputs, double flops);

}  // namespace ingot::device
