// What a launcher sees of ranks: threads here, and a process that is killed.
#include "comm/heartbeat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace ingot::comm {
namespace {

using namespace std::chrono_literals;

TEST(Heartbeats, a_board_shows_what_each_rank_does) {
  HeartbeatBoard board(3);
  EXPECT_EQ(board.pulse(1).process, 0);
  Heartbeat heartbeat(board.path(), 1);
  heartbeat.set_run_directory("/runs/a");
  heartbeat.set_operation("all_reduce of 8 B");
  auto pulse = board.pulse(1);
  EXPECT_EQ(pulse.process, getpid());
  EXPECT_EQ(pulse.step, 0);
  EXPECT_EQ(pulse.operation, "all_reduce of 8 B");
  EXPECT_EQ(pulse.run_directory, "/runs/a");
  EXPECT_FALSE(pulse.is_waiting);
  EXPECT_LT(pulse.age_s, 1);
  {
    const Heartbeat::Waiting waiting(heartbeat);
    EXPECT_TRUE(board.pulse(1).is_waiting);
  }
  EXPECT_FALSE(board.pulse(1).is_waiting);
  EXPECT_EQ(board.pulse(0).process, 0);
  board.clear();
  EXPECT_EQ(board.pulse(1).process, 0);
}

TEST(Heartbeats, gaps_count_within_steps_and_a_rank_is_settled_from_the_second_on) {
  HeartbeatBoard board(1);
  Heartbeat heartbeat(board.path(), 0);
  const auto gap_in = [&](int64_t step) {
    heartbeat.set_step(step);
    std::this_thread::sleep_for(20ms);
    EXPECT_GE(board.pulse(0).age_s, 0.02);
    heartbeat.beat();
    return board.pulse(0).longest_gap_s;
  };
  EXPECT_EQ(gap_in(0), 0) << "before the first step";
  EXPECT_GE(gap_in(500), 0.02);
  EXPECT_FALSE(board.pulse(0).is_settled);
  EXPECT_GE(gap_in(501), 0.02);
  EXPECT_TRUE(board.pulse(0).is_settled);
  heartbeat.set_step(0);
  EXPECT_FALSE(board.pulse(0).is_settled);
}

TEST(Heartbeats, long_texts_are_cut_and_a_wrong_board_is_none) {
  HeartbeatBoard board(1);
  Heartbeat heartbeat(board.path(), 0);
  heartbeat.set_operation(std::string(10000, 'x'));
  EXPECT_EQ(board.pulse(0).operation, std::string(512, 'x'));
  for (const auto& [path, rank] : {std::pair<std::string, int>{"/nowhere", 0}, {board.path(), 1}, {"/proc/self/status", 0}, {"/tmp", 0}}) {
    testing::internal::CaptureStderr();
    Heartbeat lost(path, rank);
    lost.set_step(1);
    lost.set_operation("all_gather");
    EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("INGOT_HEARTBEATS names " + path));
  }
}

TEST(Heartbeats, texts_are_read_whole_while_they_are_written) {
  HeartbeatBoard board(1);
  Heartbeat heartbeat(board.path(), 0);
  std::atomic<bool> stop = false;
  std::thread writer([&] {
    for (size_t i = 0; !stop; ++i) {
      heartbeat.set_operation(std::string(1 + i % 500, static_cast<char>('a' + i % 26)));
      std::this_thread::sleep_for(1us);  // operations follow one another more slowly than a text is read
    }
  });
  for (int i = 0; i < 20000; ++i) {
    const auto text = board.pulse(0).operation;
    EXPECT_EQ(text.find_first_not_of(text.substr(0, 1)), std::string::npos) << text;
  }
  stop = true;
  writer.join();
}

TEST(Heartbeats, a_dead_rank_can_still_be_read) {
  HeartbeatBoard board(1);
  const pid_t child = fork();
  if (child == 0) {
    Heartbeat heartbeat(board.path(), 0);
    heartbeat.set_step(7);
    heartbeat.set_operation("barrier");
    raise(SIGKILL);
  }
  waitpid(child, nullptr, 0);
  EXPECT_EQ(board.pulse(0).process, child);
  EXPECT_EQ(board.pulse(0).step, 7);
  EXPECT_EQ(board.pulse(0).operation, "barrier");
}

}  // namespace
}  // namespace ingot::comm
