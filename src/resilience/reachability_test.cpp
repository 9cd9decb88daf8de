#include "resilience/reachability.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>

namespace ingot::resilience {
namespace {

using namespace std::chrono_literals;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr Reachability::Options kQuick{.every_s = 0.02, .answer_s = 0.2};

TEST(ReachabilityTest, a_peer_that_answered_and_does_so_no_more_is_silent) {
  Reachability own(kQuick);
  auto peer = std::make_unique<Reachability>(kQuick), other = std::make_unique<Reachability>(kQuick);
  ASSERT_GT(peer->port(), 0);
  own.watch({{.id = 7, .address = "127.0.0.1", .port = peer->port()}, {.id = 8, .address = "127.0.0.1", .port = other->port()}});
  std::this_thread::sleep_for(600ms);
  EXPECT_THAT(own.silent_for(0.5), IsEmpty());
  peer.reset();
  for (int i = 0; i < 500 && own.silent_for(0.3).empty(); ++i) std::this_thread::sleep_for(20ms);
  EXPECT_THAT(own.silent_for(0.3), ElementsAre(7));
  own.watch({{.id = 8, .address = "127.0.0.1", .port = other->port()}});
  EXPECT_THAT(own.silent_for(0), IsEmpty());
}

TEST(ReachabilityTest, who_never_answered_is_not_silent) {
  Reachability own(kQuick);
  const int closed = std::make_unique<Reachability>(kQuick)->port();
  own.watch({{.id = 1, .address = "127.0.0.1", .port = closed}, {.id = 2, .address = "no.such.host.invalid", .port = 1}});
  std::this_thread::sleep_for(300ms);
  EXPECT_THAT(own.silent_for(0), IsEmpty());
  EXPECT_FALSE(answers("127.0.0.1", closed, 0.2));
  EXPECT_TRUE(answers("127.0.0.1", own.port(), 0.2));
}

TEST(ReachabilityTest, many_that_ask_are_let_in) {
  Reachability own(kQuick);
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(answers("127.0.0.1", own.port(), 5)) << i;
}

}  // namespace
}  // namespace ingot::resilience
