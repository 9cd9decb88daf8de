// The logical tensor: a global name, a global shape and a dtype. A rank holds boxes of it. Checkpoints, ownership by the
// optimizer, initialisation and Hugging Face import all speak in these terms; nothing here knows ranks or devices.
// Plain values; free of torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::tensor {

enum class DType : uint8_t { fp64, fp32, bf16, fp16, fp8_e4m3, fp8_e5m2, int64, int32, int16, int8, uint8, boolean, complex64, complex128 };

int64_t size_bytes(DType dtype);
/// The name used in checkpoint metadata and messages: "fp32", "bf16", "int64", …
std::string_view name_of(DType dtype);
/// Throws ConfigError for an unknown name.
DType dtype_from_name(std::string_view name);

using Shape = std::vector<int64_t>;

/// Product of the extents; 1 for a scalar (0 dims). Throws ConfigError when it does not fit 63 bits or an extent is negative.
int64_t element_count(const Shape& shape);
std::string to_string(const Shape& shape);

/// An axis-aligned part of a tensor: elements with offset[d] <= index[d] < offset[d] + extent[d].
struct Box {
  Shape offset, extent;
  bool operator==(const Box&) const = default;
};

/// The box that is the whole tensor.
Box whole(const Shape& shape);
bool is_inside(const Box& box, const Shape& shape);
/// The common part of two boxes of one tensor; false when they do not touch.
bool intersect(const Box& a, const Box& b, Box& common);

/// The flat (row-major) slice [begin, end) of a tensor as boxes in flat order: at most 2n-1 for n dims (and 1 for 0 dims).
std::vector<Box> boxes_of_flat_slice(const Shape& shape, int64_t begin, int64_t end);

struct LogicalTensor {
  std::string name;
  DType dtype = DType::fp32;
  Shape shape;
  bool operator==(const LogicalTensor&) const = default;
};

}  // namespace ingot::tensor
