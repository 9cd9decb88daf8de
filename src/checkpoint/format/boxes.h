// Boxes as a checkpoint needs them: does a list of boxes make up a tensor exactly, which of them touch a wanted box, and
// copying the common part between two row-major buffers. Pure functions and plain values, free of files.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tensor/logical_tensor.h"

namespace ingot::checkpoint {

using tensor::Box;
using tensor::Shape;

/// Empty when the boxes lie inside the shape, do not overlap and leave no gap; else what is wrong and where. A tensor
/// without elements has no boxes. About n·log n for n boxes that any number of cuts along any dims have made.
std::string why_not_tiled(const Shape& shape, const std::vector<Box>& boxes);
std::string why_not_tiled_by(const Shape& shape, const std::vector<const Box*>& boxes);

/// Cuts a box into boxes of at most `limit_elements` (at least one element each) whose row-major contents, one after the
/// other, are the content of the box.
std::vector<Box> cut(const Box& box, int64_t limit_elements);

/// Finds the boxes of one tensor that touch a wanted one. Does not keep the boxes: they must be the same at each call.
class BoxIndex {
 public:
  explicit BoxIndex(const std::vector<Box>& boxes);
  /// Indices of boxes that share elements with `wanted`, ascending.
  std::vector<size_t> touching(const std::vector<Box>& boxes, const Box& wanted) const;

 private:
  size_t dim_ = 0;              // the dim along which the boxes begin at most places
  std::vector<size_t> order_;   // boxes by where they begin along dim_
  int64_t largest_extent_ = 0;  // along dim_
};

/// Copies `common` from a buffer that holds `source_box` to one that holds `destination_box`, both row-major. The source
/// buffer may lack its first `source_begin` elements, when `common` needs none of them.
void copy_box(const std::byte* source, const Box& source_box, std::byte* destination, const Box& destination_box, const Box& common,
              int64_t element_bytes, int64_t source_begin = 0);

/// Where `common` lies in a row-major buffer of `box`, if it is one run there; -1 otherwise. In elements.
int64_t contiguous_offset(const Box& box, const Box& common);

/// Offset in elements of the first element of `common` within a row-major buffer of `box`, and of the last one.
int64_t first_element(const Box& box, const Box& common);
int64_t last_element(const Box& box, const Box& common);

}  // namespace ingot::checkpoint
