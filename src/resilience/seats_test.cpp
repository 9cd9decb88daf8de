#include "resilience/seats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <thread>

#include "base/error.h"

namespace ingot::resilience {
namespace {

base::Environment with_seat(const std::string& name) {
  base::Environment environment;
  environment.seat = name;
  environment.ingot_cache = "kept";
  return environment;
}

TEST(Seats, hand_on_which_rank_a_process_is_next) {
  SeatBoard board(2);
  auto seat = Seat::of(with_seat(board.name(1, true)));
  ASSERT_TRUE(seat && seat->is_spare());
  for (const char* rank : {"3", "0"}) {  // as often as it loses one
    EXPECT_FALSE(board.is_waiting(1));
    auto next = std::async([&] { return seat->wait(with_seat("mine"), "rank 2 has died", [] { return false; }); });
    while (!board.is_waiting(1)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    EXPECT_FALSE(board.is_waiting(0));
    EXPECT_EQ(board.why(1), "rank 2 has died");
    board.give(1, {{"RANK", rank}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "node=7"}, {"INGOT_CACHE", "not this"}});
    const auto environment = next.get();
    ASSERT_TRUE(environment);
    EXPECT_EQ(environment->rank, rank);
    EXPECT_EQ(environment->world_size, "4");
    EXPECT_EQ(environment->master_address, "node=7");
    EXPECT_EQ(environment->ingot_cache, "kept");
    EXPECT_EQ(environment->seat, "mine");
  }
}

TEST(Seats, are_left_by_who_is_stopped) {
  SeatBoard board(1);
  auto seat = Seat::of(with_seat(board.name(0, false)));
  ASSERT_TRUE(seat && !seat->is_spare());
  const auto stop = [&] {
    EXPECT_TRUE(board.is_waiting(0));
    EXPECT_EQ(board.why(0), std::string(1899, 'x')) << "cut to what a seat holds";
    return true;
  };
  for (int time = 0; time < 2; ++time) {
    EXPECT_FALSE(seat->wait({}, std::string(5000, 'x'), stop));
    EXPECT_FALSE(board.is_waiting(0)) << "the launcher would count on a process that ends";
  }
  EXPECT_THROW(board.give(0, {{"RANK", std::string(3000, '1')}}), base::Error);
}

TEST(Seats, that_are_none_are_said_to_be_none) {
  EXPECT_FALSE(Seat::of(with_seat("")));
  SeatBoard board(2);
  const auto path = board.name(0, false).substr(0, board.name(0, false).rfind(':'));
  for (const auto& name : {std::string("x"), std::string("/dev/null:0"), std::string(":"), path, path + ":", path + ":2", path + ":-1",
                           path + ":1x", path + ":99999999999999999999", std::string("/nowhere:0")}) {
    EXPECT_FALSE(Seat::of(with_seat(name))) << name;
    EXPECT_THROW(Seat::of(with_seat(name + ":spare")), base::ConfigError) << name;
  }
}

}  // namespace
}  // namespace ingot::resilience
