// Work that is given to a device once and done again many times: CUDA's and HIP's graphs, and the emulated device's. What a host says in a
// thousand launches it then says in one.
#pragma once

#include <functional>
#include <memory>

#include "device/aten.h"

namespace ingot::device {

class Graph {
 public:
  /// Of a GPU or an emulated device. With `beside` the two share memory: of both, what one leaves behind for its reader must be read before
  /// the other is replayed.
  explicit Graph(at::Device device, const Graph* beside = nullptr);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Runs `work` once, which does nothing on the device yet: it is kept. Tensors that it reads and writes must stay where they are; tensors
  /// that it makes get their contents with each replay, in memory that is this graph's. Numbers of the host are as they were. Throws what
  /// `work` throws, and where it needs the host to wait for the device; then the graph is of no use.
  void capture(const std::function<void()>& work);
  /// Does it, behind what the current stream has to do.
  void replay();

  /// That it keeps beyond the tensors that `work` left behind, in bytes; of a virtual device.
  int64_t kept_bytes() const;

 private:
  class Implementation;
  class OfEmulated;
  class OfGpu;
  std::unique_ptr<Implementation> of_;
};

}  // namespace ingot::device
