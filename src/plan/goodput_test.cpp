#include "plan/goodput.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace ingot::plan {
namespace {

// A failure every 1,000 s.
const Reliability kFrail{.device_mtbf_h = 1000.0 / 3600 * 16, .devices = 16, .restart_s = 120, .save_stall_s = 20};

TEST(Goodput, without_failures_is_lost_to_saving_alone) {
  EXPECT_DOUBLE_EQ(expected_goodput({.save_stall_s = 5}, 95), 0.95);
  EXPECT_DOUBLE_EQ(expected_goodput({.device_mtbf_h = 1e15, .devices = 1, .restart_s = 100, .save_stall_s = 5}, 95), 0.95);
}

TEST(Goodput, agrees_with_failures_that_are_drawn) {
  for (const double work_s : {60.0, 300.0, 1500.0}) {
    const double drawn = drawn_goodput(kFrail, work_s, 100'000, 7);
    EXPECT_NEAR(expected_goodput(kFrail, work_s) / drawn, 1, 0.01) << work_s;
  }
  EXPECT_NEAR(expected_goodput(kFrail, 300), 0.705533, 1e-6);  // 0.3 / (e^0.12 (e^0.32 - 1))
}

TEST(Goodput, is_highest_near_youngs_interval) {
  const double best_s = best_save_interval_s(kFrail);
  EXPECT_NEAR(best_s, std::sqrt(2 * 20 * 1000.0) - 20, 20);  // Daly: sqrt(2 c M) - c
  for (const double other_s : {best_s * 0.8, best_s * 1.25}) EXPECT_LT(expected_goodput(kFrail, other_s), expected_goodput(kFrail, best_s));
}

TEST(Goodput, of_a_run_that_never_gets_to_the_next_save_is_none) {
  EXPECT_EQ(expected_goodput(kFrail, 1e8), 0);
  EXPECT_LT(expected_goodput(kFrail, 1e4), 1e-3);
}

TEST(Goodput, refuses_what_cannot_be) {
  EXPECT_THROW(expected_goodput(kFrail, 0), base::ConfigError);
  EXPECT_THROW(expected_goodput({.device_mtbf_h = -1}, 1), base::ConfigError);
  EXPECT_THROW(expected_goodput({.devices = 0}, 1), base::ConfigError);
  EXPECT_THROW(expected_goodput({.restart_s = NAN}, 1), base::ConfigError);
}

}  // namespace
}  // namespace ingot::plan
