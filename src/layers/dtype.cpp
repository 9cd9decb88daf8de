#include "layers/dtype.h"

#include <fmt/ranges.h>

#include <cstring>

#include "base/error.h"

namespace ingot::layers {
namespace {

constexpr std::pair<tensor::DType, at::ScalarType> kPairs[] = {{tensor::DType::fp64, at::kDouble},
                                                               {tensor::DType::fp32, at::kFloat},
                                                               {tensor::DType::bf16, at::kBFloat16},
                                                               {tensor::DType::fp16, at::kHalf},
                                                               {tensor::DType::fp8_e4m3, at::kFloat8_e4m3fn},
                                                               {tensor::DType::fp8_e5m2, at::kFloat8_e5m2},
                                                               {tensor::DType::int64, at::kLong},
                                                               {tensor::DType::int32, at::kInt},
                                                               {tensor::DType::int16, at::kShort},
                                                               {tensor::DType::int8, at::kChar},
                                                               {tensor::DType::uint8, at::kByte},
                                                               {tensor::DType::boolean, at::kBool},
                                                               {tensor::DType::complex64, at::kComplexFloat},
                                                               {tensor::DType::complex128, at::kComplexDouble}};

const std::pair<const char*, Precision> kPrecisions[] = {{"fp64", at::kDouble},
                                                         {"fp32", at::kFloat},
                                                         {"bf16", at::kBFloat16},
                                                         {"fp8", {at::kBFloat16, kernels::Quantization::fp8}},
                                                         {"fp8_block", {at::kBFloat16, kernels::Quantization::fp8_block}},
                                                         {"mxfp8", {at::kBFloat16, kernels::Quantization::mxfp8}},
                                                         {"nvfp4", {at::kBFloat16, kernels::Quantization::nvfp4}}};

}  // namespace

at::ScalarType to_torch(tensor::DType dtype) {
  for (const auto& [ours, theirs] : kPairs)
    if (ours == dtype) return theirs;
  throw base::ModelError("the dtype {} cannot be computed with", tensor::name_of(dtype));
}

tensor::DType from_torch(at::ScalarType dtype) {
  for (const auto& [ours, theirs] : kPairs)
    if (theirs == dtype) return ours;
  throw base::ModelError("tensors of torch's dtype {} cannot be stored", at::toString(dtype));
}

std::vector<std::string> precisions() {
  std::vector<std::string> names;
  for (const auto& [name, precision] : kPrecisions) names.emplace_back(name);
  return names;
}

Precision precision_named(const std::string& name) {
  for (const auto& [known, precision] : kPrecisions)
    if (known == name) return precision;
  throw base::ConfigError("unknown precision '{}'; it is one of {}", name, fmt::join(precisions(), ", "));
}

std::string dtype_name(const std::string& precision) {
  const auto dtype = precision_named(precision).dtype;
  for (const auto& [name, known] : kPrecisions)
    if (known.dtype == dtype && !known.quantization) return name;
  return precision;
}

at::Tensor tensor_from_bytes(std::span<const std::byte> bytes, tensor::DType dtype, const tensor::Shape& shape) {
  auto out = at::empty(shape, to_torch(dtype));
  if (static_cast<size_t>(out.nbytes()) != bytes.size())
    throw base::ModelError("{} bytes do not make a tensor of {} {}", bytes.size(), tensor::name_of(dtype), tensor::to_string(shape));
  if (!bytes.empty()) std::memcpy(out.data_ptr(), bytes.data(), bytes.size());
  return out;
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), static_cast<size_t>(tensor.nbytes())};
}

}  // namespace ingot::layers
