// Memory that comes and goes behind tensors which stay: a flat buffer keeps its views, and has storage only while it is needed.
// What is dropped goes back to the allocator, which keeps it for the next buffer (kernels/cpu_memory.h; torch's own on GPUs).
#pragma once

#include "device/aten.h"

namespace ingot::parallel {

/// Gives the storage of `tensor` (which owns all of it) memory of its size, unless it has some. The content is undefined.
void give_storage(const at::Tensor& tensor);
/// The tensor and its views must not be touched until it is given storage again.
void drop_storage(const at::Tensor& tensor);
inline bool has_storage(const at::Tensor& tensor) { return tensor.storage().data() != nullptr; }

}  // namespace ingot::parallel
