// The two names of a dtype: ours (tensor::DType, on disk) and torch's (in memory).
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "tensor/logical_tensor.h"

namespace ingot::layers {

/// Throws ModelError for a dtype that torch does not have.
at::ScalarType to_torch(tensor::DType dtype);
tensor::DType from_torch(at::ScalarType dtype);
/// "fp64", "fp32" or "bf16", the names of train.precision; throws ConfigError otherwise.
at::ScalarType compute_dtype(const std::string& precision);

/// A host tensor with a copy of raw little-endian row-major bytes.
at::Tensor tensor_from_bytes(std::span<const std::byte> bytes, tensor::DType dtype, const tensor::Shape& shape);
/// The bytes of a contiguous host tensor, which must outlive the span.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);

}  // namespace ingot::layers
