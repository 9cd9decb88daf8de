// Memory of the virtual devices. Inner header.
#pragma once

#include <c10/core/Stream.h>

#include <cstddef>

#include "device/aten.h"

namespace ingot::device {

/// Memory of the calling thread's device (current_index()).
c10::Allocator* virtual_allocator();

/// The host's address of memory of an emulated device; the one that tensors show may not be touched.
void* host_address(void* shown);

/// A tensor over the same storage, sizes and strides with another dispatch key: CPU (of an emulated device) or Meta. It does not keep the
/// memory.
at::Tensor shadow_of(const at::Tensor& tensor, c10::DispatchKey key);
/// The storage of such shadows.
c10::Storage shadow_of(const c10::Storage& storage, c10::DispatchKey key);
at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, const at::Tensor& like);

/// Freed memory of an emulated device waits for what `stream` has to do now, too.
void record_use(const c10::DataPtr& memory, const c10::Stream& stream);

/// The block behind a tensor no longer holds what was declared.
void forget_contents(const at::Tensor& tensor);

}  // namespace ingot::device
