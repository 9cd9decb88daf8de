#include "device/host_copies.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace ingot::device {
namespace {

constexpr uintptr_t kAlignment = 4096;

c10::impl::VirtualGuardImpl guard_of(at::Device device) { return c10::impl::VirtualGuardImpl(device.type()); }

}  // namespace

HostCopies::HostCopies(at::Device device) : device_(device), stream_(guard_of(device).getStreamFromGlobalPool(device)) {}

void HostCopies::follow_current_stream() const {
  c10::Event now(device_.type());
  now.record(guard_of(device_).getStream(device_));
  now.block(stream_);
}

void HostCopies::copy(std::byte* to, const std::byte* from, int64_t bytes) const {
  const c10::StreamGuard as_current(stream_);
  const auto tensor_over = [&](const std::byte* memory, at::Device device) {
    return at::for_blob(const_cast<std::byte*>(memory), {bytes})
        .options(at::TensorOptions().dtype(at::kByte).device(device))
        .target_device(device)
        .make_tensor();
  };
  tensor_over(to, at::kCPU).copy_(tensor_over(from, device_));
}

std::shared_ptr<std::byte> HostCopies::allocate(int64_t bytes) const {
  const auto options = at::TensorOptions().dtype(at::kByte).pinned_memory(device_.is_cuda());
  const auto memory = at::empty({bytes + static_cast<int64_t>(kAlignment)}, options);
  const auto begin = (reinterpret_cast<uintptr_t>(memory.data_ptr()) + kAlignment - 1) / kAlignment * kAlignment;
  return {reinterpret_cast<std::byte*>(begin), [memory](std::byte*) {}};
}

}  // namespace ingot::device
