// Memory of the virtual devices. Inner header.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>

namespace ingot::device {

/// Memory of the calling thread's device (current_index()).
c10::Allocator* virtual_allocator();

/// The host's address of memory of an emulated device; the one that tensors show may not be touched.
void* host_address(void* shown);

/// A tensor over the same storage, sizes and strides with another dispatch key: the host's (emulated) or Meta's (counting).
at::Tensor shadow_of(const at::Tensor& tensor);
/// The storage of such shadows. It does not keep the memory.
c10::Storage shadow_of(const c10::Storage& storage, at::Device device);
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like);

/// The block behind a tensor no longer holds what was declared.
void forget_contents(const at::Tensor& tensor);

}  // namespace ingot::device
