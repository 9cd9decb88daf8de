// The two names of a dtype: ours (tensor::DType, on disk) and torch's (in memory).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "device/aten.h"
#include "kernels/quantization.h"
#include "tensor/logical_tensor.h"

namespace ingot::layers {

/// Throws ModelError for a dtype that torch does not have.
at::ScalarType to_torch(tensor::DType dtype);
tensor::DType from_torch(at::ScalarType dtype);

/// What a model computes in: the dtype of its weights and activations, and how the operands of the large GEMMs are quantized, if they are
/// (kernels/quantization.h).
struct Precision {
  at::ScalarType dtype = at::kFloat;
  std::optional<kernels::Quantization> quantization;
  Precision(at::ScalarType of, std::optional<kernels::Quantization> rounded = {})
      : dtype(of), quantization(rounded) {}  // NOLINT: a dtype is one
};
/// The names of train.precision: fp64, fp32, bf16, and those that quantize GEMMs of bf16: fp8 (a scale per tensor), fp8_block, mxfp8,
/// nvfp4.
std::vector<std::string> precisions();
/// Throws ConfigError for a name that is none of them.
Precision precision_named(const std::string& name);
/// The name of its dtype, by which profiles have their figures: "bf16" of "mxfp8".
std::string dtype_name(const std::string& precision);

/// A host tensor with a copy of raw little-endian row-major bytes.
at::Tensor tensor_from_bytes(std::span<const std::byte> bytes, tensor::DType dtype, const tensor::Shape& shape);
/// The bytes of a contiguous host tensor, which must outlive the span.
std::span<const std::byte> bytes_of(const at::Tensor& tensor);

}  // namespace ingot::layers
