#include "resilience/launch_page.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <httplib.h>
#include <unistd.h>

#include "base/error.h"

namespace ingot::resilience {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

health::HardwareReading no_hardware() { return {}; }

TEST(LaunchPage, shows_all_ranks_also_one_that_hangs) {
  comm::HeartbeatBoard board(3);
  LaunchPage page("127.0.0.1:0", board, 3, [] {
    return health::HardwareReading{{{health::Counted::memory_uncorrected, "mc0", 2}}, {"temperatures: none"}};
  });
  httplib::Client client("127.0.0.1", page.port());
  page.begin(4, 2);
  comm::Heartbeat first(board.path(), 0), second(board.path(), 1);  // the third has not come
  first.set_step(7);
  first.set_step(8);
  second.set_step(7);
  const comm::Heartbeat::Waiting waits(second);
  page.count_failure(Cause::hang);
  page.count_failure(Cause::hang);
  page.count_restart();
  const auto text = client.Get("/metrics")->body;
  EXPECT_THAT(text, AllOf(HasSubstr("ingot_rank_step{rank=\"4\"} 8\n"), HasSubstr("ingot_rank_step{rank=\"5\"} 7\n"),
                          HasSubstr("ingot_rank_step{rank=\"6\"} 0\n")));
  EXPECT_THAT(text, AllOf(HasSubstr("ingot_rank_waiting{rank=\"4\"} 0\n"), HasSubstr("ingot_rank_waiting{rank=\"5\"} 1\n"),
                          Not(HasSubstr("ingot_rank_waiting{rank=\"6\"}"))));
  EXPECT_THAT(text, AllOf(HasSubstr(fmt::format("ingot_rank_process{{rank=\"4\"}} {}\n", getpid())),
                          HasSubstr("ingot_rank_process{rank=\"6\"} 0\n")));
  EXPECT_THAT(text,
              AllOf(HasSubstr("ingot_rank_step_seconds{"), HasSubstr("part=\"own\""), HasSubstr("ingot_rank_silent_seconds{rank=\"5\"}")));
  EXPECT_THAT(text, AllOf(HasSubstr("ingot_launch_failures_total{cause=\"hang\"} 2\n"),
                          HasSubstr("ingot_launch_failures_total{cause=\"crash\"} 0\n"), HasSubstr("ingot_launch_restarts_total 1\n"),
                          HasSubstr("ingot_launch_nodes 2\n")));
  EXPECT_THAT(text, HasSubstr("ingot_node_hardware{counter=\"memory_uncorrected\",part=\"mc0\"} 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("celsius")));
}

TEST(LaunchPage, asks_to_drain_by_post_alone) {
  comm::HeartbeatBoard board(1);
  LaunchPage page("127.0.0.1:0", board, 1, no_hardware);
  httplib::Client client("127.0.0.1", page.port());
  EXPECT_EQ(client.Get("/drain")->status, 404);
  EXPECT_EQ(client.Post("/metrics")->status, 404);
  EXPECT_FALSE(page.is_asked_to_drain());
  EXPECT_EQ(client.Post("/drain")->status, 200);
  EXPECT_TRUE(page.is_asked_to_drain());
}

TEST(LaunchPage, says_what_is_wrong_with_its_address) {
  comm::HeartbeatBoard board(1);
  for (const char* wrong : {"", "localhost", "127.0.0.1:99999", "no.such.host.invalid:9400"})
    EXPECT_THROW(LaunchPage(wrong, board, 1, no_hardware), base::UsageError) << wrong;
  const LaunchPage first("127.0.0.1:0", board, 1, no_hardware);
  EXPECT_THROW(LaunchPage(fmt::format("127.0.0.1:{}", first.port()), board, 1, no_hardware), base::UsageError) << "taken";
}

}  // namespace
}  // namespace ingot::resilience
