#include "tensor/logical_tensor.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ingot::tensor {
namespace {

// The oracle: visit every element of the boxes in order and compare with counting.
std::vector<int64_t> flat_indices(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<int64_t> out;
  for (const auto& box : boxes) {
    const int64_t count = element_count(box.extent);
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, flat = 0, stride = 1;
      for (size_t d = shape.size(); d-- > 0;) {
        flat += (box.offset[d] + rest % box.extent[d]) * stride;
        rest /= box.extent[d];
        stride *= shape[d];
      }
      out.push_back(flat);
    }
  }
  return out;
}

TEST(FlatSlice, covers_exactly_its_elements_in_order_with_few_boxes) {
  for (const Shape& shape : {Shape{}, Shape{7}, Shape{3, 4}, Shape{2, 3, 4}, Shape{3, 1, 2, 3}}) {
    const int64_t count = element_count(shape);
    for (int64_t begin = 0; begin <= count; ++begin) {
      for (int64_t end = begin; end <= count; ++end) {
        const auto boxes = boxes_of_flat_slice(shape, begin, end);
        EXPECT_LE(boxes.size(), std::max<size_t>(1, 2 * shape.size() - (shape.empty() ? 0 : 1)));
        std::vector<int64_t> expected;
        for (int64_t i = begin; i < end; ++i) expected.push_back(i);
        EXPECT_EQ(flat_indices(shape, boxes), expected) << to_string(shape) << " " << begin << ".." << end;
      }
    }
  }
}

TEST(FlatSlice, outside_the_tensor_is_refused) { EXPECT_THROW(boxes_of_flat_slice({2, 2}, 1, 5), base::ConfigError); }

TEST(ElementCount, overflow_is_an_error_not_a_wrong_number) {
  EXPECT_THROW(element_count({int64_t{1} << 40, int64_t{1} << 40}), base::ConfigError);
  EXPECT_THROW(element_count({-1}), base::ConfigError);
  EXPECT_EQ(element_count({}), 1);
}

TEST(Box, intersection_is_the_common_part) {
  Box common;
  EXPECT_TRUE(intersect({{0, 0}, {4, 4}}, {{2, 3}, {4, 4}}, common));
  EXPECT_EQ(common, (Box{{2, 3}, {2, 1}}));
  EXPECT_FALSE(intersect({{0}, {2}}, {{2}, {2}}, common));
  EXPECT_FALSE(is_inside({{1}, {INT64_MAX}}, {4}));
}

TEST(DType, names_round_trip) {
  for (const auto* name : {"fp64", "fp32", "bf16", "int64", "complex128"}) EXPECT_EQ(name_of(dtype_from_name(name)), name);
  EXPECT_THROW(dtype_from_name("float"), base::ConfigError);
}

}  // namespace
}  // namespace ingot::tensor
