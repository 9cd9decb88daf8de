#include "checkpoint/format/coding.h"

#include <algorithm>
#include <optional>

namespace ingot::checkpoint {
namespace {

using base::CheckpointError;

constexpr size_t kDimLimit = 32;

// The codes are part of the format: never change one, only add.
constexpr std::pair<uint8_t, tensor::DType> kDTypeCodes[] = {
    {1, tensor::DType::fp64},       {2, tensor::DType::fp32},       {3, tensor::DType::bf16},   {4, tensor::DType::fp16},
    {5, tensor::DType::fp8_e4m3},   {6, tensor::DType::fp8_e5m2},   {7, tensor::DType::int64},  {8, tensor::DType::int32},
    {9, tensor::DType::int16},      {10, tensor::DType::int8},      {11, tensor::DType::uint8}, {12, tensor::DType::boolean},
    {13, tensor::DType::complex64}, {14, tensor::DType::complex128}};

uint8_t dtype_code(tensor::DType dtype) {
  return std::find_if(std::begin(kDTypeCodes), std::end(kDTypeCodes), [&](const auto& known) { return known.second == dtype; })->first;
}

std::optional<tensor::DType> dtype_from_code(uint8_t code) {
  for (const auto& [known, dtype] : kDTypeCodes) {
    if (known == code) return dtype;
  }
  return std::nullopt;
}

}  // namespace

void put(Encoder& out, const tensor::LogicalTensor& tensor) {
  out.text(tensor.name);
  out.fixed(dtype_code(tensor.dtype));
  out.number(static_cast<int64_t>(tensor.shape.size()));
  for (const int64_t extent : tensor.shape) out.number(extent);
}

void take(Decoder& in, tensor::LogicalTensor& tensor) {
  tensor.name = in.text();
  const auto dtype = dtype_from_code(in.fixed<uint8_t>());
  if (!dtype) throw CheckpointError("{}: tensor '{}' has a dtype that this version of ingot does not know", in.origin(), tensor.name);
  tensor.dtype = *dtype;
  const size_t dims = in.count(1);
  if (dims > kDimLimit) throw CheckpointError("{}: tensor '{}' has {} dims, more than {}", in.origin(), tensor.name, dims, kDimLimit);
  tensor.shape.clear();
  for (size_t d = 0; d < dims; ++d) tensor.shape.push_back(in.number());
}

void put(Encoder& out, const tensor::Box& box) {
  for (size_t d = 0; d < box.offset.size(); ++d) {
    out.number(box.offset[d]);
    out.number(box.extent[d]);
  }
}

void take(Decoder& in, size_t dims, tensor::Box& box) {
  box.offset.resize(dims);
  box.extent.resize(dims);
  for (size_t d = 0; d < dims; ++d) {
    box.offset[d] = in.number();
    box.extent[d] = in.number();
  }
}

}  // namespace ingot::checkpoint
