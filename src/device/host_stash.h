// Tensors of a device that wait in the host's memory until they are needed again.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "device/aten.h"

namespace ingot::device {

/// Copies out and back, each on a stream of their own; the host waits for none. Of a GPU, or of a virtual device, where a counting one only
/// writes the copies down. Used by one thread at a time.
class HostStash {
 public:
  explicit HostStash(at::Device device);

  /// On its way out or there: pinned memory where the device is a GPU.
  struct Stored {
    at::Tensor host;
    std::shared_ptr<c10::Event> arrived;
  };
  /// Follows what the current stream has to do now. The tensor may be dropped at once; it must not change before it is out.
  Stored put(const at::Tensor& tensor);

  struct Returning {
    at::Tensor tensor;
    std::shared_ptr<c10::Event> arrived;
  };
  Returning bring(const Stored& stored);
  /// For the current stream, which waits for it.
  at::Tensor take(Returning returning);

 private:
  std::shared_ptr<c10::Event> event_on(const c10::Stream& stream) const;

  at::Device device_;
  c10::Stream out_, back_;
};

}  // namespace ingot::device
