// Memory that comes and goes behind tensors which stay: a flat buffer keeps its views, and has storage only while it is needed.
// Freed storage is kept for the next buffer of about its size, since fresh pages cost more than the work done in them.
#pragma once

#include <ATen/ATen.h>

#include <map>

namespace ingot::parallel {

class MemoryPool {
 public:
  /// Gives the storage of `tensor` (which owns all of it) memory of its size, unless it has some. The content is undefined.
  void attach(const at::Tensor& tensor);
  /// Takes it back; the tensor and its views must not be touched until the next attach.
  void detach(const at::Tensor& tensor);
  /// The same, but nobody gets the memory: for buffers of which only a few are ever needed at a time.
  static void drop(const at::Tensor& tensor);
  static bool is_attached(const at::Tensor& tensor) { return tensor.storage().data() != nullptr; }

 private:
  std::multimap<size_t, c10::DataPtr> free_;  // by bytes
};

}  // namespace ingot::parallel
