#include "bench/shape_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::bench {
namespace {

TEST(ShapeProbe, has_a_rate_for_every_size_however_many_rounds) {
  ShapeProbe probe{.m = 8, .k = 16, .n = {40, 32, 33}, .rounds = 4};
  std::vector<int> rounds;
  const auto rates = measure_neighbours(probe, [&](int done) {
    rounds.push_back(done);
    return done < 2;  // two rounds are measured, the third is not begun
  });
  EXPECT_THAT(rounds, testing::ElementsAre(0, 1, 2));
  ASSERT_EQ(rates.size(), 3U);
  std::vector<int64_t> sizes;
  for (const auto& e : rates) {
    sizes.push_back(e.n);
    EXPECT_EQ(e.m, 8);
    EXPECT_EQ(e.k, 16);
    EXPECT_EQ(e.pass, "forward");
    EXPECT_GT(e.flops_per_s, 0);
  }
  EXPECT_THAT(sizes, testing::ElementsAre(32, 33, 40));
}

TEST(ShapeProbe, stopped_before_its_first_round_has_nothing) {
  EXPECT_TRUE(measure_neighbours({.n = {32}}, [](int) { return false; }).empty());
}

}  // namespace
}  // namespace ingot::bench
