#include "plan/message_line.h"

#include <gtest/gtest.h>

namespace ingot::plan {
namespace {

TEST(MessageLine, is_the_line_that_made_the_times) {
  std::vector<MessageTime> times;
  for (double bytes = 8; bytes < 1e8; bytes *= 10) times.push_back({bytes, 2e-5 + bytes / 5e9});
  const auto line = fitted_line(times);
  EXPECT_NEAR(line.latency_s, 2e-5, 1e-12);
  EXPECT_NEAR(line.bytes_per_s, 5e9, 1);
  EXPECT_LT(line.largest_error, 1e-9);
  EXPECT_NEAR(line.seconds(1e6), 2.2e-4, 1e-9);
  EXPECT_EQ(line.knee_bytes, 8e6) << "1.6 ms and 20 us; a tenth of the size has 87 % of the rate";
}

TEST(MessageLine, has_no_negative_term) {
  const auto faster = fitted_line({{1e3, 3e-5}, {1e6, 1e-5}});
  EXPECT_EQ(faster.bytes_per_s, 0);
  EXPECT_GT(faster.latency_s, 0);
  const auto convex = fitted_line({{1e3, 1e-7}, {1e6, 1e-3}});
  EXPECT_EQ(convex.latency_s, 0);
  EXPECT_GT(convex.bytes_per_s, 0);
  const auto single = fitted_line({{1e3, 1e-5}});
  EXPECT_NEAR(single.seconds(1e3), 1e-5, 1e-12);
}

TEST(MessageLine, bus_factors_are_those_of_nccl_tests) {
  EXPECT_DOUBLE_EQ(bus_factor("all_reduce", 8), 1.75);
  for (const char* operation : {"all_gather", "reduce_scatter", "all_to_all"}) EXPECT_DOUBLE_EQ(bus_factor(operation, 8), 0.875);
  for (const char* operation : {"broadcast", "reduce", "send_receive"}) EXPECT_DOUBLE_EQ(bus_factor(operation, 8), 1);
}

}  // namespace
}  // namespace ingot::plan
