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

HostStash::Stored HostStash::put(const at::Tensor& tensor) {
  if (is_counting(tensor)) {
    write_down(Access::copy_to_host, "offload", tensor, device_);
    return {at::empty_like(tensor, tensor.options().device(at::kMeta)), nullptr};
  }
  event_on(guard_of(device_).getStream(device_))->block(out_);
  const c10::StreamGuard as_current(out_);
  auto host = at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(device_.is_cuda()));
  host.copy_(tensor, /*non_blocking=*/true);
  tensor.record_stream(out_);
  return {host, event_on(out_)};
}

HostStash::Returning HostStash::bring(const Stored& stored) {
  const auto& host = stored.host;
  if (host.is_meta()) {
    auto tensor = at::empty(host.sizes(), host.options().device(device_));
    write_down(Access::copy_to_device, "bring back", tensor, device_);
    return {tensor, nullptr};
  }
  stored.arrived->block(back_);
  const c10::StreamGuard as_current(back_);
  auto tensor = at::empty(host.sizes(), host.options().device(device_).pinned_memory(false));
  tensor.copy_(host, /*non_blocking=*/true);
  return {tensor, event_on(back_)};
}

at::Tensor HostStash::take(Returning returning) {
  if (returning.arrived) {
    const auto current = guard_of(device_).getStream(device_);
    returning.arrived->block(current);
    returning.tensor.record_stream(current);
  }
  return returning.tensor;
}

}  // namespace ingot::device
