// Every element of every slice of a part is found where the definition puts it: by counting, one index at a time.
#include "tensor/part.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

#include "base/error.h"

namespace ingot::tensor {
namespace {

// Global flat index of each element of the local tensor, in local order: the definition.
std::vector<int64_t> global_indices(const Shape& shape, const Part& part) {
  std::vector<int64_t> indices = {0};
  for (size_t d = 0; d < shape.size(); ++d) {
    std::vector<int64_t> next;
    for (const int64_t before : indices)
      for (const Range& range : part[d])
        for (int64_t i = range.begin; i < range.end; ++i) next.push_back(before * shape[d] + i);
    indices = next;
  }
  return indices;
}

// The same read from regions: position in the slice -> global flat index.
std::map<int64_t, int64_t> from_regions(const Shape& shape, const std::vector<Region>& regions) {
  std::map<int64_t, int64_t> found;
  for (const Region& region : regions) {
    const int64_t count = element_count(region.box.extent);
    for (int64_t n = 0; n < count; ++n) {
      int64_t rest = n, global = 0, at = region.offset;
      Shape index(shape.size());
      for (size_t d = shape.size(); d-- > 0;) {
        index[d] = rest % region.box.extent[d];
        rest /= region.box.extent[d];
      }
      for (size_t d = 0; d < shape.size(); ++d) {
        global = global * shape[d] + region.box.offset[d] + index[d];
        at += index[d] * region.strides[d];
      }
      EXPECT_TRUE(found.emplace(at, global).second) << "twice: " << at;
    }
  }
  return found;
}

TEST(Part, regions_find_every_element_of_every_slice) {
  const std::vector<std::pair<Shape, Part>> cases = {
      {{7}, {{{0, 7}}}},
      {{7}, {{{1, 3}, {5, 6}}}},
      {{6, 4}, {{{0, 2}, {3, 5}}, {{0, 4}}}},
      {{6, 4}, {{{0, 6}}, {{0, 1}, {2, 4}}}},
      {{3, 8, 5}, {{{1, 3}}, {{0, 2}, {4, 6}}, {{0, 5}}}},
      {{3, 8, 5}, {{{0, 1}, {2, 3}}, {{2, 4}, {6, 8}}, {{1, 2}, {3, 5}}}},
      {{2, 4}, {{{0, 2}}, {}}},
  };
  for (const auto& [shape, part] : cases) {
    const auto expected = global_indices(shape, part);
    const auto count = static_cast<int64_t>(expected.size());
    EXPECT_EQ(element_count(local_shape(shape, part)), count);
    for (int64_t begin = 0; begin <= count; ++begin) {
      for (int64_t end = begin; end <= count; ++end) {
        const auto found = from_regions(shape, regions_of(shape, part, begin, end));
        ASSERT_EQ(found.size(), static_cast<size_t>(end - begin)) << to_string(shape) << " " << begin << ".." << end;
        for (const auto& [at, global] : found) ASSERT_EQ(global, expected[static_cast<size_t>(begin + at)]);
      }
    }
  }
}

TEST(Part, without_dims_is_the_whole_tensor) {
  EXPECT_EQ(local_shape({3, 4}, {}), (Shape{3, 4}));
  const auto regions = regions_of({3, 4}, {}, 0, 12);
  ASSERT_EQ(regions.size(), 1U);
  EXPECT_EQ(regions[0].box, whole({3, 4}));
  EXPECT_EQ(regions_of({}, {}, 0, 1).size(), 1U);  // a scalar
}

TEST(Part, that_does_not_fit_is_refused) {
  EXPECT_THROW(local_shape({3, 4}, {{{0, 3}}}), base::ConfigError);
  EXPECT_THROW(local_shape({3}, {{{0, 4}}}), base::ConfigError);
  EXPECT_THROW(local_shape({3}, {{{1, 2}, {0, 1}}}), base::ConfigError);
  EXPECT_THROW(share_of(10, 0, 3), base::ConfigError);
  EXPECT_EQ(share_of(12, 1, 3), (Range{4, 8}));
}

}  // namespace
}  // namespace ingot::tensor
