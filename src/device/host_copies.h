// A device's memory copied to the host's while the device computes.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "device/aten.h"

namespace ingot::device {

/// Copies on a stream of their own. Of a GPU or an emulated device.
class HostCopies {
 public:
  explicit HostCopies(at::Device device);
  /// What is copied from now on is what the calling thread's current stream has been given to do so far.
  void follow_current_stream() const;
  /// Returns when the bytes are there. Any thread.
  void copy(std::byte* to, const std::byte* from, int64_t bytes) const;
  /// Host memory that the device copies into without the driver's own buffers between: pinned for a GPU. Aligned to 4096.
  std::shared_ptr<std::byte> allocate(int64_t bytes) const;

 private:
  at::Device device_;
  c10::Stream stream_;
};

}  // namespace ingot::device
