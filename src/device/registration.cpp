// What libtorch asks of a device besides its operators. This is registered when the program is loaded, since autograd counts devices once,
// at its first backward pass.
//
// libtorch has one accelerator in a process, on whose streams its autograd makes gradients. It takes a device of this kind for it from the
// moment that its name is registered, which the emulated device does at first use; a GPU beside it then has no streams there. So counting
// devices have no name: where plans are made beside a GPU, the GPU stays the accelerator.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <mutex>
#include <utility>

#include "device/memory.h"
#include "device/state.h"
#include "device/stream.h"
#include "device/trace_writer.h"

namespace ingot::device {

namespace {

// Events and streams of emulated devices are stream.h's. Those of counting devices stand in the trace and have no effect: nothing runs
// there, and an event is a position of the trace.
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
  c10::Stream getStream(at::Device device) const override { return current_stream(indexed(device)); }
  c10::Stream getDefaultStream(at::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, indexed(device)); }
  c10::Stream getStreamFromGlobalPool(at::Device device, bool) const override { return new_stream(indexed(device)); }
  c10::Stream getNewStream(at::Device device, int) const override { return new_stream(indexed(device)); }
  c10::Stream exchangeStream(c10::Stream to) const override {
    return c10::Stream(c10::Stream::UNSAFE, to.device(), std::exchange(current_stream_id(to.device_index()), to.id()));
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kDevices; }

  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<StreamPoint*>(event); }
  void record(void** event, const c10::Stream& stream, c10::DeviceIndex, c10::EventFlag) const override {
    if (!*event) *event = new StreamPoint;
    auto& point = *static_cast<StreamPoint*>(*event);
    if (is_emulated(stream.device())) {
      point = end_of(stream);
      return;
    }
    const auto& writer = state_of(stream.device()).writer;
    point = {stream.device_index(), stream.id(), writer ? writer->position() : 0};
  }
  void block(void* event, const c10::Stream& stream) const override {
    const auto* point = static_cast<StreamPoint*>(event);
    if (!point) return;
    if (is_emulated(stream.device())) wait_for(stream, *point);
    else if (const auto& writer = state_of(stream.device()).writer) writer->stream_waits(stream.id(), point->stream, point->jobs);
  }
  bool queryEvent(void* event) const override {
    const auto* point = emulated(event);
    return !point || has_reached(*point);
  }
  bool queryStream(const c10::Stream& stream) const override { return !is_emulated(stream.device()) || has_reached(end_of(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override {
    note_wait(stream.device());
    if (is_emulated(stream.device())) run_until(end_of(stream));
  }
  void synchronizeEvent(void* event) const override {
    if (event) note_wait({kVirtual, static_cast<StreamPoint*>(event)->device});
    if (const auto* point = emulated(event)) run_until(*point);
  }
  void synchronizeDevice(c10::DeviceIndex index) const override {
    const at::Device device(kVirtual, index);
    note_wait(device);
    if (is_emulated(device)) synchronize(device);
  }
  void recordDataPtrOnStream(const c10::DataPtr& memory, const c10::Stream& stream) const override { record_use(memory, stream); }

 private:
  at::Device indexed(at::Device device) const { return device.has_index() ? device : getDevice(); }
  static const StreamPoint* emulated(void* event) {
    const auto* point = static_cast<StreamPoint*>(event);
    return point && is_emulated({kVirtual, point->device}) ? point : nullptr;
  }
  static void note_wait(at::Device device) {
    if (const auto writer = state_of(device).writer) writer->host_access(Trace::HostAccess::Kind::read, "synchronize", 0);
  }
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

void register_name() {
  static std::once_flag once;
  std::call_once(once, [] { c10::register_privateuse1_backend("virtual"); });
}

}  // namespace ingot::device

// In place of libtorch's own, which its libraries call by this name: there, every kind of device that could be an accelerator is one,
// though getAccelerator() names one only, and a backward pass on any other ends at an assertion (pytorch/pytorch#161129; seen on an H200,
// where a counting device had been used before). Devices that are not the accelerator have no streams in autograd, as XLA's have none.
bool at::accelerator::isAccelerator(c10::DeviceType type) { return type != at::kCPU && getAccelerator() == type; }
