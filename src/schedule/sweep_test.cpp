#include "schedule/sweep.h"

#include <gtest/gtest.h>

namespace ingot::schedule {
namespace {

TEST(Crossover, is_found_by_bisection_where_there_is_one) {
  const auto line = [](double slope, double begin) { return [=](int64_t seq) { return begin + slope * static_cast<double>(seq); }; };
  EXPECT_EQ(first_below(line(1, 100), line(2, 0), 1, 1000, 1), 101);
  EXPECT_EQ(first_below(line(1, 100), line(2, 0), 1, 1000, 64), 128);
  EXPECT_EQ(first_below(line(1, 100), line(2, 0), 1, 100, 1), std::nullopt);
  EXPECT_EQ(first_below(line(1, 0), line(2, 1), 8, 1000, 8), 8);
  EXPECT_EQ(first_below(line(1, 0), line(2, 1), 10, 15, 8), std::nullopt);
}

}  // namespace
}  // namespace ingot::schedule
