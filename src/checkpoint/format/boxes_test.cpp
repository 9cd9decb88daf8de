#include "checkpoint/format/boxes.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <random>

namespace ingot::checkpoint {
namespace {

using ::testing::HasSubstr;
using Random = std::mt19937_64;

int64_t draw(Random& random, int64_t low, int64_t high) { return std::uniform_int_distribution<int64_t>(low, high)(random); }

// Cuts a box at random places along random dims until `pieces` parts exist: a tiling, by construction.
std::vector<Box> random_tiling(Random& random, const Shape& shape, size_t pieces) {
  std::vector<Box> boxes{tensor::whole(shape)};
  for (int tries = 0; boxes.size() < pieces && tries < 1000; ++tries) {
    const size_t which = static_cast<size_t>(draw(random, 0, static_cast<int64_t>(boxes.size()) - 1));
    const size_t dim = static_cast<size_t>(draw(random, 0, static_cast<int64_t>(shape.size()) - 1));
    if (boxes[which].extent[dim] < 2) continue;
    const int64_t at = draw(random, 1, boxes[which].extent[dim] - 1);
    Box high = boxes[which];
    high.offset[dim] += at;
    high.extent[dim] -= at;
    boxes[which].extent[dim] = at;
    boxes.push_back(high);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

Shape random_shape(Random& random) {
  Shape shape(static_cast<size_t>(draw(random, 1, 4)));
  for (int64_t& extent : shape) extent = draw(random, 1, 7);
  return shape;
}

// Calls `visit` with the global row-major index of each element of the box, in the box's row-major order.
template <class Visit>
void for_each_element(const Shape& shape, const Box& box, Visit&& visit) {
  Shape at = box.offset;
  for (int64_t count = tensor::element_count(box.extent); count > 0; --count) {
    int64_t flat = 0;
    for (size_t d = 0; d < shape.size(); ++d) flat = flat * shape[d] + at[d];
    visit(flat);
    for (size_t d = shape.size(); d-- > 0;) {
      if (++at[d] < box.offset[d] + box.extent[d]) break;
      at[d] = box.offset[d];
    }
  }
}

// The oracle: counts how often each element is covered.
bool covers_each_element_once(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<int> times(static_cast<size_t>(tensor::element_count(shape)));
  for (const Box& box : boxes) for_each_element(shape, box, [&](int64_t i) { ++times[static_cast<size_t>(i)]; });
  return std::all_of(times.begin(), times.end(), [](int t) { return t == 1; });
}

TEST(Boxes, tiling_check_agrees_with_counting_every_element) {
  Random random(1);
  int sound = 0, faulty = 0;
  for (int round = 0; round < 4000; ++round) {
    const Shape shape = random_shape(random);
    auto boxes = random_tiling(random, shape, static_cast<size_t>(draw(random, 1, 12)));
    const size_t which = static_cast<size_t>(draw(random, 0, static_cast<int64_t>(boxes.size()) - 1));
    Box moved = boxes[which];
    switch (draw(random, 0, 4)) {
      case 0: boxes.erase(boxes.begin() + static_cast<ptrdiff_t>(which)); break;
      case 1: boxes.push_back(moved); break;
      case 2:  // moved by one, so that gap and overlap have the same volume
        for (size_t d = 0; d < shape.size(); ++d) {
          if (moved.offset[d] + moved.extent[d] < shape[d]) {
            ++moved.offset[d];
            break;
          }
        }
        boxes[which] = moved;
        break;
      default: break;
    }
    const bool expected = covers_each_element_once(shape, boxes);
    EXPECT_EQ(why_not_tiled(shape, boxes).empty(), expected) << tensor::to_string(shape);
    ++(expected ? sound : faulty);
  }
  EXPECT_GT(sound, 500);
  EXPECT_GT(faulty, 500);
}

TEST(Boxes, tiling_names_gaps_overlaps_and_boxes_outside) {
  EXPECT_THAT(why_not_tiled({4, 4}, {{{0, 0}, {2, 4}}}), HasSubstr("in no piece"));
  EXPECT_THAT(why_not_tiled({4, 4}, {{{0, 0}, {3, 4}}, {{2, 0}, {2, 4}}}), HasSubstr("overlap"));
  EXPECT_THAT(why_not_tiled({4, 4}, {{{0, 0}, {5, 4}}}), HasSubstr("outside"));
  EXPECT_THAT(why_not_tiled({4, 4}, {{{0, -1}, {4, 4}}}), HasSubstr("outside"));
  EXPECT_THAT(why_not_tiled({4, 4}, {{{0}, {4}}}), HasSubstr("outside"));
  EXPECT_THAT(why_not_tiled({4, 4}, {{{0, 0}, {4, 4}}, {{0, 0}, {0, 4}}}), HasSubstr("empty"));
  EXPECT_THAT(why_not_tiled({4, 4}, {{{INT64_MAX, 0}, {INT64_MAX, 4}}}), HasSubstr("outside"));
  EXPECT_EQ(why_not_tiled({}, {{{}, {}}}), "");
  EXPECT_THAT(why_not_tiled({}, {}), HasSubstr("in no piece"));
  EXPECT_THAT(why_not_tiled({}, {{{}, {}}, {{}, {}}}), HasSubstr("overlap"));
  EXPECT_EQ(why_not_tiled({0, 3}, {}), "");
}

TEST(Boxes, sixteen_thousand_chunks_are_checked_in_milliseconds_however_they_are_cut) {
  const auto grid = [](int64_t rows, int64_t columns, int64_t planes) {
    std::vector<Box> boxes;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c)
        for (int64_t p = 0; p < planes; ++p) boxes.push_back({{r * 3, c * 5, p * 2}, {3, 5, 2}});
    std::shuffle(boxes.begin(), boxes.end(), Random(7));
    return boxes;
  };
  for (const auto& [rows, columns, planes] :
       {std::array<int64_t, 3>{16384, 1, 1}, {1, 16384, 1}, {1, 1, 16384}, {128, 128, 1}, {32, 32, 16}}) {
    const auto boxes = grid(rows, columns, planes);
    const auto start = std::chrono::steady_clock::now();
    EXPECT_EQ(why_not_tiled({rows * 3, columns * 5, planes * 2}, boxes), "");
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    RecordProperty(fmt::format("ms_{}x{}x{}", rows, columns, planes), fmt::format("{:.1f}", seconds * 1e3));
    EXPECT_LT(seconds, 2.0) << "quadratic: 16,384 chunks take far longer then";
  }
}

TEST(Boxes, cut_pieces_follow_one_another_in_row_major_order) {
  Random random(2);
  for (int round = 0; round < 2000; ++round) {
    const Shape shape = random_shape(random);
    Box box = tensor::whole(shape);
    for (size_t d = 0; d < shape.size(); ++d) {
      box.offset[d] = draw(random, 0, shape[d] - 1);
      box.extent[d] = draw(random, 1, shape[d] - box.offset[d]);
    }
    const int64_t limit = draw(random, 1, 40);
    std::vector<int64_t> whole, parts;
    for_each_element(shape, box, [&](int64_t i) { whole.push_back(i); });
    for (const Box& part : cut(box, limit)) {
      EXPECT_LE(tensor::element_count(part.extent), limit);
      for_each_element(shape, part, [&](int64_t i) { parts.push_back(i); });
    }
    ASSERT_EQ(whole, parts) << tensor::to_string(shape) << " limit " << limit;
  }
  EXPECT_EQ(cut({{}, {}}, 1).size(), 1u);
  EXPECT_TRUE(cut({{0, 0}, {0, 5}}, 1).empty());
  EXPECT_EQ(cut({{0, 0}, {1024, 1024}}, 1 << 20).size(), 1u);
}

TEST(Boxes, index_finds_exactly_the_touching_boxes) {
  Random random(3);
  for (int round = 0; round < 1000; ++round) {
    const Shape shape = random_shape(random);
    const auto boxes = random_tiling(random, shape, 10), wanted = random_tiling(random, shape, 3);
    const BoxIndex index(boxes);
    std::vector<size_t> expected;
    Box common;
    for (size_t i = 0; i < boxes.size(); ++i) {
      if (tensor::intersect(boxes[i], wanted[0], common)) expected.push_back(i);
    }
    EXPECT_EQ(index.touching(boxes, wanted[0]), expected);
  }
}

TEST(Boxes, copied_parts_have_the_elements_of_the_tensor) {
  Random random(4);
  for (int round = 0; round < 1000; ++round) {
    const Shape shape = random_shape(random);
    const auto sources = random_tiling(random, shape, 6);
    const Box wanted = random_tiling(random, shape, 3)[0];
    std::vector<int32_t> expected, result(static_cast<size_t>(tensor::element_count(wanted.extent)), -1);
    for_each_element(shape, wanted, [&](int64_t i) { expected.push_back(static_cast<int32_t>(i)); });
    for (const Box& source : sources) {
      std::vector<int32_t> buffer;
      for_each_element(shape, source, [&](int64_t i) { buffer.push_back(static_cast<int32_t>(i)); });
      Box common;
      if (!tensor::intersect(source, wanted, common)) continue;
      const int64_t first = first_element(source, common);
      const bool is_run = last_element(source, common) - first + 1 == tensor::element_count(common.extent);
      EXPECT_EQ(contiguous_offset(source, common), is_run ? first : -1);
      copy_box(reinterpret_cast<const std::byte*>(buffer.data() + first), source, reinterpret_cast<std::byte*>(result.data()), wanted,
               common, 4, first);
    }
    ASSERT_EQ(result, expected);
  }
}

}  // namespace
}  // namespace ingot::checkpoint
