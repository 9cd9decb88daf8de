#include "device/host_stash.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "device/state.h"
#include "device/trace_writer.h"
#include "device/virtual_device.h"

namespace ingot::device {
namespace {

using Access = Trace::HostAccess::Kind;

c10::impl::VirtualGuardImpl guard_of(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()); }

// A counting device has nothing to copy; the host's side is a shape.
void write_down(Access kind, const char* name, const at::Tensor& tensor, at::Device device) {
  if (const auto writer = state_of(device).writer) writer->host_access(kind, name, static_cast<int64_t>(tensor.nbytes()), /*waits=*/false);
}

}  // namespace

HostStash::HostStash(at::Device device)
    : device_(device), out_(guard_of(device).getStreamFromGlobalPool(device)), back_(guard_of(device).getStreamFromGlobalPool(device)) {}

std::shared_ptr<c10::Event> HostStash::event_on(const c10::Stream& stream) const {
  auto event = std::make_shared<c10::Event>(device_.type());
  event->record(stream);
  return event;
}

c10::Stream HostStash::current() const { return guard_of(device_).getStream(device_); }

at::Tensor HostStash::memory_for(const at::Tensor& tensor) const {
  if (is_counting(tensor)) return at::empty(tensor.sizes(), tensor.options().device(at::kMeta));
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(device_.is_cuda()));
}

HostStash::Stored HostStash::put(const at::Tensor& tensor, at::Tensor host) {
  if (!host.defined()) host = memory_for(tensor);
  if (host.is_meta()) {
    write_down(Access::copy_to_host, "offload", tensor, device_);
    return {host, nullptr};
  }
  event_on(current())->block(out_);
  const c10::StreamGuard as_current(out_);
  host.copy_(tensor, /*non_blocking=*/true);
  return {host, event_on(out_)};
}

void HostStash::let_go(const Stored& stored) const {
  if (stored.arrived) stored.arrived->block(current());
}

HostStash::Returning HostStash::bring(const Stored& stored) const {
  const auto& host = stored.host;
  auto tensor = at::empty(host.sizes(), host.options().device(device_).pinned_memory(false));
  if (host.is_meta()) {
    write_down(Access::copy_to_device, "bring back", tensor, device_);
    return {tensor, nullptr};
  }
  event_on(current())->block(back_);  // what had the memory before
  if (stored.arrived) stored.arrived->block(back_);
  const c10::StreamGuard as_current(back_);
  tensor.copy_(host, /*non_blocking=*/true);
  return {tensor, event_on(back_)};
}

at::Tensor HostStash::take(const Returning& returning) const {
  if (returning.arrived) returning.arrived->block(current());
  return returning.tensor;
}

at::Tensor HostStash::settle(const at::Tensor& tensor) const {
  auto host = memory_for(tensor);
  if (!host.is_meta()) host.copy_(tensor);
  return host;
}

}  // namespace ingot::device
