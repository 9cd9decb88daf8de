// Whether there is NaN or Inf in elements of floating point; always false for other dtypes and for fp8. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/logical_tensor.h"

namespace ingot::checkpoint {

/// `data` is aligned to the element.
bool has_nonfinite(tensor::DType dtype, const std::byte* data, int64_t size_bytes);

}  // namespace ingot::checkpoint
