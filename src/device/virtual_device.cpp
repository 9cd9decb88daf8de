#include "device/virtual_device.h"

#include <array>

#include "base/error.h"
#include "device/memory.h"
#include "device/state.h"
#include "device/trace_writer.h"

namespace ingot::device {
namespace {

[[maybe_unused]] const bool is_registered = register_guard();

}  // namespace

DeviceState& state_of(c10::DeviceIndex index) {
  static auto& states = *[] {
    auto* all = new std::array<DeviceState, kDevices>;  // never destroyed: tensors of other static objects may be freed later
    for (int i = kEmulatedDevices; i < kDevices; ++i) (*all)[static_cast<size_t>(i)].is_counting = true;
    return all;
  }();
  return states.at(static_cast<size_t>(index));
}

c10::DeviceIndex& current_index() {
  thread_local c10::DeviceIndex index = 0;
  return index;
}

at::Device emulated_device(int index) {
  if (index < 0 || index >= kEmulatedDevices)
    throw base::Error(fmt::format("there are {} emulated devices, and none of index {}", kEmulatedDevices, index));
  register_operators();
  register_name();
  return {kVirtual, static_cast<at::DeviceIndex>(index)};
}

CountingDevice::CountingDevice(Target target, double expert_load) : device_(kVirtual, 0) {
  register_operators();
  for (int i = kEmulatedDevices; i < kDevices; ++i) {
    const auto index = static_cast<at::DeviceIndex>(i);
    auto& state = state_of(index);
    if (state.is_taken.exchange(true)) continue;
    state.target = target;
    state.expert_load = expert_load;
    state.peak_bytes = state.allocated_bytes.load();
    device_ = {kVirtual, index};
    return;
  }
  throw base::Error(fmt::format("all {} counting devices are in use", kCountingDevices));
}

CountingDevice::~CountingDevice() { state_of(device_).is_taken = false; }

bool is_emulated(at::Device device) { return is_virtual(device) && !state_of(device).is_counting; }
bool is_counting(at::Device device) { return is_virtual(device) && state_of(device).is_counting; }
Target target_of(at::Device device) { return state_of(device).target; }
double expert_load(at::Device device) { return is_counting(device) ? state_of(device).expert_load : 1; }

MemoryUse memory_use(at::Device device) {
  const auto& state = state_of(device);
  return {state.allocated_bytes, state.peak_bytes, state.allocations};
}

void reset_peak(at::Device device) {
  auto& state = state_of(device);
  state.peak_bytes = state.allocated_bytes.load();
}

PeakSince::PeakSince(at::Device device)
    : device_(device), peak_before_(state_of(device).peak_bytes), allocated_before_(state_of(device).allocated_bytes) {
  reset_peak(device);
}
PeakSince::~PeakSince() {
  auto& state = state_of(device_);
  if (state.peak_bytes < peak_before_) state.peak_bytes = peak_before_;
}
int64_t PeakSince::bytes() const { return state_of(device_).peak_bytes - allocated_before_; }

bool counted(const char* kernel, at::TensorList inputs, at::TensorList outputs, double flops) {
  for (const at::TensorList tensors : {inputs, outputs})
    for (const auto& tensor : tensors)
      if (tensor.defined()) {
        if (!is_counting(tensor)) return false;
        note(kernel, inputs, outputs, flops);
        return true;
      }
  return false;
}

void note(const char* kernel, at::TensorList inputs, at::TensorList outputs, double flops) {
  for (const at::TensorList tensors : {inputs, outputs})
    for (const auto& tensor : tensors)
      if (tensor.defined()) {
        if (!is_virtual(tensor.device())) return;
        for (const auto& output : outputs)
          if (output.defined()) forget_contents(output);
        if (const auto writer = state_of(tensor.device()).writer) writer->operation(kernel, inputs, outputs, flops);
        return;
      }
}

}  // namespace ingot::device
