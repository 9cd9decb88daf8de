#include "resilience/stop_signal.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace ingot::resilience {
namespace {

TEST(StopSignalDeathTest, a_second_signal_ends_training_at_once) {
  EXPECT_EXIT(
      {
        const StopSignal stop;
        ::raise(SIGINT);
        if (stop.received() != SIGINT) ::_exit(1);
        ::raise(SIGTERM);
        ::_exit(2);
      },
      ::testing::ExitedWithCode(128 + SIGTERM), "then saving; once more");
}

TEST(StopSignalDeathTest, work_that_cleans_up_is_not_disturbed_and_hears_a_terminal_close) {
  EXPECT_EXIT(
      {
        const StopSignal stop("removing files\n");
        ::raise(SIGHUP);
        ::raise(SIGINT);
        ::_exit(stop.received() == SIGINT ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "^removing files\n$");
}

TEST(StopSignalDeathTest, the_one_before_has_its_note_and_its_second_signal_back) {
  EXPECT_EXIT(
      {
        const StopSignal outer("measuring\n", SecondSignal::ends_at_once);
        { const StopSignal inner("removing files\n"); }
        ::raise(SIGINT);
        ::raise(SIGINT);
        ::_exit(1);
      },
      ::testing::ExitedWithCode(128 + SIGINT), "^measuring\n$");
}

}  // namespace
}  // namespace ingot::resilience
