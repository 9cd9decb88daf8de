#include "base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace ingot::base {
namespace {

// Known answers of Random123's own test vectors for philox4x32-10.
TEST(Philox, agrees_with_the_published_vectors) {
  EXPECT_EQ(philox(0, 0, 0), (std::array<uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(0xffffffffffffffff, 0xffffffffffffffff, 0xffffffffffffffff),
            (std::array<uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (std::array<uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Normal, has_the_moments_of_a_standard_normal) {
  const uint64_t key = stream_key(7, "layer.weight");
  double sum = 0, squares = 0, fourth = 0;
  constexpr int kCount = 200000;
  for (int i = 0; i < kCount; ++i) {
    const double x = normal_at(key, static_cast<uint64_t>(i));
    sum += x;
    squares += x * x;
    fourth += x * x * x * x;
  }
  EXPECT_NEAR(sum / kCount, 0, 0.01);
  EXPECT_NEAR(squares / kCount, 1, 0.02);
  EXPECT_NEAR(fourth / kCount, 3, 0.1);
}

TEST(StreamKey, differs_by_seed_and_by_name) {
  EXPECT_NE(stream_key(1, "a"), stream_key(2, "a"));
  EXPECT_NE(stream_key(1, "a"), stream_key(1, "b"));
  EXPECT_EQ(stream_key(1, "a"), stream_key(1, "a"));
}

TEST(Permute, is_a_permutation_for_every_size) {
  for (const uint64_t size : {1u, 2u, 3u, 7u, 64u, 65u, 1000u}) {
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < size; ++i) seen.insert(permute(99, i, size));
    EXPECT_EQ(seen.size(), size);
    EXPECT_EQ(*seen.rbegin(), size - 1);
  }
}

}  // namespace
}  // namespace ingot::base
