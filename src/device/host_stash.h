// Tensors of a device that wait in the host's memory until they are needed again.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <vector>

#include "device/aten.h"

namespace ingot::device {

/// Copies out and back, each on a stream of their own; the host waits for none. All memory of the device is the current stream's, which
/// waits for a copy out before that is given up: a host that is steps ahead of its device takes no more of it. Of a GPU, or of a virtual
/// device, where a counting one only writes the copies down. Used by one thread at a time.
class HostStash {
 public:
  explicit HostStash(at::Device device);

  /// On its way out or there: pinned memory where the device is a GPU. On a counting device only a shape.
  struct Stored {
    at::Tensor host;
    std::shared_ptr<c10::Event> arrived;  // null: nothing is on its way
  };
  /// Follows what the current stream has to do now. The tensor must neither change nor be dropped before let_go(). `host`: memory that it
  /// was put into before.
  Stored put(const at::Tensor& tensor, at::Tensor host = {});
  /// What the current stream gets to do from now on comes after the copy.
  void let_go(const Stored& stored) const;

  struct Returning {
    at::Tensor tensor;
    std::shared_ptr<c10::Event> arrived;
  };
  Returning bring(const Stored& stored) const;
  /// For the current stream, which waits for it.
  at::Tensor take(const Returning& returning) const;

  /// Memory for put() that holds what the tensor does, when the host may read it.
  at::Tensor settle(const at::Tensor& tensor) const;

 private:
  std::shared_ptr<c10::Event> event_on(const c10::Stream& stream) const;
  c10::Stream current() const;
  at::Tensor memory_for(const at::Tensor& tensor) const;

  at::Device device_;
  c10::Stream out_, back_;
};

}  // namespace ingot::device
