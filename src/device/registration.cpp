// What libtorch asks of a device besides its operators. This is registered when the program is loaded, since autograd counts devices once,
// at its first backward pass. The device's name is registered with the operators, at first use: from then on libtorch takes it for the
// accelerator of the process, on whose streams gradients are made.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <utility>

#include "device/memory.h"
#include "device/state.h"

namespace ingot::device {

namespace {

// Streams have numbers and no effect: everything runs in the order of the calls.
class Guard : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return kVirtual; }
  at::Device exchangeDevice(at::Device device) const override {
    return {kVirtual, std::exchange(current_index(), device.has_index() ? device.index() : current_index())};
  }
  at::Device getDevice() const override { return {kVirtual, current_index()}; }
  void setDevice(at::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(at::Device device) const noexcept override {
    if (device.has_index()) current_index() = device.index();
  }
  c10::Stream getStream(at::Device device) const override { return stream(current_stream(), device); }
  c10::Stream getDefaultStream(at::Device device) const override { return stream(0, device); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(at::Device device, int) const override {
    static std::atomic<c10::StreamId> next = 1;
    return stream(next++, device);
  }
  c10::Stream exchangeStream(c10::Stream to) const override { return stream(std::exchange(current_stream(), to.id()), to.device()); }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }
  void record(void** event, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override { *event = &event_; }
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(c10::DeviceIndex) const override {}

 private:
  static c10::StreamId& current_stream() {
    thread_local c10::StreamId id = 0;
    return id;
  }
  c10::Stream stream(c10::StreamId id, at::Device device) const {
    return c10::Stream(c10::Stream::UNSAFE, device.has_index() ? device : getDevice(), id);
  }
  static inline char event_ = 0;
};

class Hooks : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return kDevices; }
  c10::DeviceIndex getCurrentDevice() const override { return current_index(); }
  void setCurrentDevice(c10::DeviceIndex index) const override { current_index() = index; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override { return std::exchange(current_index(), index); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override { return exchangeDevice(index); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override { return at::detail::getDefaultCPUGenerator(); }
  at::Generator getNewGenerator(c10::DeviceIndex) const override { return at::detail::createCPUGenerator(); }
  at::Device getDeviceFromPtr(void*) const override { return {kVirtual, current_index()}; }
  c10::Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(at::kCPU); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override { grow_storage(storage, bytes); }
};

}  // namespace

bool register_guard() {
  static Guard guard;
  static Hooks hooks;
  c10::impl::device_guard_impl_registry[static_cast<size_t>(kVirtual)].store(&guard);
  at::RegisterPrivateUse1HooksInterface(&hooks);
  c10::SetAllocator(kVirtual, virtual_allocator());
  return true;
}

}  // namespace ingot::device
