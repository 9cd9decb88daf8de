// What the parts of this folder know of each virtual device. Inner header.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <cstdint>
#include <memory>

#include "device/virtual_device.h"

namespace ingot::device {

class TraceWriter;

struct DeviceState {
  bool is_counting = false;
  std::atomic<bool> is_taken = false;
  Target target = Target::gpu;
  double expert_load = 1;
  std::atomic<int64_t> allocated_bytes = 0, peak_bytes = 0, allocations = 0;
  std::atomic<int64_t> freed_bytes = 0;  // of an emulated device: freed, and not back yet
  std::shared_ptr<TraceWriter> writer;   // of the tracer at work; null without
};

constexpr int kDevices = kEmulatedDevices + kCountingDevices;
constexpr auto kVirtual = c10::DeviceType::PrivateUse1;

DeviceState& state_of(c10::DeviceIndex index);
inline DeviceState& state_of(c10::Device device) { return state_of(device.index()); }
/// The virtual device of this thread.
c10::DeviceIndex& current_index();
/// The stream of this thread on a device.
c10::StreamId& current_stream_id(c10::DeviceIndex index);
/// Whether a stream of an emulated device has nothing to do.
bool is_idle(const c10::Stream& stream);
/// Works off a default stream on which a lot has gathered.
void get_on(const c10::Stream& stream);

/// More bytes for a storage of a virtual device; what it held stays.
void grow_storage(const c10::Storage& storage, size_t bytes);
/// Tells libtorch that there are virtual devices.
bool register_guard();
/// Registers libtorch's operators for the virtual devices; once, at first use.
void register_operators();

// Makes the device libtorch's accelerator, for good.
void register_name();

}  // namespace ingot::device
