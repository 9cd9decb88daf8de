// Whether and when a job starts again, from histories.
#include "resilience/retry_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::resilience {
namespace {

using ::testing::HasSubstr;

FailedAttempt crash(int64_t step, const std::string& signature = "status 1: bad") {
  return {.cause = Cause::crash, .step = step, .signature = signature};
}
FailedAttempt killed(int64_t step) { return {.cause = Cause::killed, .step = step, .signature = "status 137: "}; }

TEST(RetryPolicy, a_job_that_came_further_starts_at_once) {
  EXPECT_TRUE(after({killed(0)}, {.restarts = 1}).restarts);
  const auto retry = after({killed(10), killed(12), killed(30)}, {.restarts = 5});
  EXPECT_TRUE(retry.restarts);
  EXPECT_EQ(retry.pause_s, 0);
}

TEST(RetryPolicy, one_that_did_not_waits_longer_each_time) {
  std::vector<FailedAttempt> attempts{killed(10)};
  for (const double pause : {1, 2, 4, 8, 16, 32, 60, 60}) {
    attempts.push_back(killed(7));
    EXPECT_EQ(after(attempts, {.restarts = 100}).pause_s, pause);
  }
  attempts.push_back(killed(11));
  EXPECT_EQ(after(attempts, {.restarts = 100}).pause_s, 0);
}

TEST(RetryPolicy, limits_hold) {
  EXPECT_FALSE(after({killed(1)}, {}).restarts);
  EXPECT_FALSE(after({killed(1), killed(2)}, {.restarts = 1}).restarts);
  std::vector<FailedAttempt> attempts;
  for (int i = 0; i < 5; ++i) {
    attempts.push_back(killed(i + 1));
    attempts.back().started_s = i * 30000.0, attempts.back().ended_s = attempts.back().started_s + 100;
  }
  EXPECT_TRUE(after(attempts, {.restarts = 9, .restarts_per_day = 4}).restarts) << "three of four restarts are of the last day";
  EXPECT_THAT(after(attempts, {.restarts = 9, .restarts_per_day = 3}).why, HasSubstr("3 restarts within a day"));
}

TEST(RetryPolicy, the_same_crash_in_the_same_step_is_no_accident) {
  EXPECT_THAT(after({crash(9), crash(9)}, {.restarts = 9}).why, HasSubstr("step 9 failed twice"));
  EXPECT_TRUE(after({crash(9), crash(9, "status 1: other")}, {.restarts = 9}).restarts);
  EXPECT_TRUE(after({crash(9), crash(10)}, {.restarts = 9}).restarts);
  EXPECT_TRUE(after({killed(9), killed(9)}, {.restarts = 9}).restarts) << "from outside";
  EXPECT_TRUE(after({crash(9), killed(9), crash(9)}, {.restarts = 9}).restarts) << "not in a row";
  EXPECT_TRUE(after({crash(0), crash(0)}, {.restarts = 9}).restarts) << "nobody knows the step";
  EXPECT_EQ(signature_of(1, "step 12: at 0x7f3a out of 99 MiB"), "status 1: step #: at #x#f#a out of # MiB");
}

TEST(RetryPolicy, wrong_calls_and_stopped_jobs_stay_as_they_are) {
  for (const auto cause : {Cause::usage, Cause::stopped}) {
    auto attempt = crash(3);
    attempt.cause = cause;
    EXPECT_FALSE(after({attempt}, {.restarts = 9}).restarts);
  }
}

}  // namespace
}  // namespace ingot::resilience
