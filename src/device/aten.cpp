#include "device/aten.h"

#include <ATen/core/IListRef.h>
#include <ATen/ops/cat.h>

namespace ingot::device {

at::Tensor cat(at::TensorList tensors, int64_t dim) { return at::cat(tensors, dim); }

}  // namespace ingot::device
