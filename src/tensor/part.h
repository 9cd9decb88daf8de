// What a rank holds of a logical tensor. Along each dim it holds ranges of indices, side by side; the local tensor is their
// product, row-major. One range covers most shardings; two occur where a tensor is made of two (gate rows and up rows, the
// query and the key channels of a convolution). A ZeRO owner holds a flat slice of such a local tensor.
//
// Plain values; free of torch.
#pragma once

#include <vector>

#include "tensor/logical_tensor.h"

namespace ingot::tensor {

/// Indices begin <= i < end.
struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// For each dim its ranges, ascending and disjoint; no dims at all = the whole tensor. A dim without ranges = nothing.
using Part = std::vector<std::vector<Range>>;

/// Share `index` of `count` equal ones. Throws ConfigError when n does not divide.
Range share_of(int64_t n, int64_t index, int64_t count);

/// The whole tensor of a shape.
Part whole_part(const Shape& shape);

/// Shape of the local tensor. Throws ConfigError when the part does not fit the shape.
Shape local_shape(const Shape& shape, const Part& part);

/// A box of the tensor and how its elements lie in the memory of a slice: element (i, j, …) of the box, counted from its
/// offset, is at offset + i * strides[0] + j * strides[1] + …
struct Region {
  Box box;
  int64_t offset = 0;
  Shape strides;
};

/// Where the elements [begin, end) of the local tensor belong in the whole one. Together the boxes make up the slice.
std::vector<Region> regions_of(const Shape& shape, const Part& part, int64_t begin, int64_t end);

}  // namespace ingot::tensor
