// Which rank is meant, from what ranks did last.
#include "resilience/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::resilience {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

WatchedRank rank(int number, double age_s, bool is_waiting, const std::string& operation = "all_reduce of 8 B, step 5", char state = 'S') {
  return {number,
          {.process = 100 + number,
           .step = 5,
           .is_settled = true,
           .age_s = age_s,
           .longest_gap_s = 1,
           .is_waiting = is_waiting,
           .operation = operation},
          state};
}

int found(const std::vector<WatchedRank>& ranks, HangLimits limits = {.silence_s = 10}) {
  const auto hang = find_hang(ranks, limits);
  return hang ? hang->rank : -2;
}

TEST(Hangs, nobody_hangs_within_the_limit) {
  EXPECT_EQ(found({rank(0, 9, true), rank(1, 9, false)}), -2);
  EXPECT_EQ(found({rank(0, 1e9, true), rank(1, 1e9, false)}, {.silence_s = 0}), -2) << "nobody is watched";
}

TEST(Hangs, others_that_wait_are_not_meant) {
  const auto hang = find_hang({rank(0, 11, true), rank(1, 12, false, "all_gather of 4 B, step 5"), rank(2, 11, true)}, {.silence_s = 10});
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->rank, 1);
  EXPECT_THAT(hang->description, AllOf(HasSubstr("rank 1 (process 101) hangs in step 5"), HasSubstr("after all_gather of 4 B, step 5"),
                                       HasSubstr("silent for 12.0 s")));
}

TEST(Hangs, a_stopped_process_is_meant_wherever_it_stopped) {
  EXPECT_EQ(found({rank(0, 11, false), rank(1, 11, true, "all_reduce", 'T'), rank(2, 11, true)}), 1);
}

TEST(Hangs, one_that_waits_while_another_works_waits_for_it) {
  EXPECT_EQ(found({rank(0, 11, true), rank(1, 5, false)}), -2) << "rank 1 is slow, and not silent";
  EXPECT_EQ(found({rank(0, 11, true), rank(1, 11, true)}, {.silence_s = 10, .is_whole_job = false}), -2) << "for another machine's";
}

TEST(Hangs, of_ranks_in_different_operations_the_fewest_are_meant) {
  EXPECT_EQ(found({rank(0, 11, true, "a"), rank(1, 11, true, "b"), rank(2, 11, true, "a")}), 1);
  EXPECT_EQ(found({rank(0, 11, true), rank(1, 11, true)}), -1) << "all in one: none of them";
}

TEST(Hangs, of_ranks_that_all_do_something_else_each_is_said) {
  const auto hang = find_hang({rank(0, 11, true, "a"), rank(1, 11, true, "b")}, {.silence_s = 10});
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->rank, -1);
  EXPECT_THAT(hang->description, HasSubstr("wait for each other: rank 0 in a, rank 1 in b, for 11.0 s"));
}

// A bug: it was stopped before its first step, when nobody was watched yet, and the others waited for it at the rendezvous.
TEST(Hangs, a_rank_that_is_stopped_is_named_before_its_first_step_too) {
  auto ranks = std::vector<WatchedRank>{rank(0, 11, true), rank(1, 11, true)};
  for (auto& r : ranks) r.pulse.is_settled = false, r.pulse.step = 0;
  EXPECT_EQ(found(ranks), -2);
  ranks[1].state = 'T', ranks[1].stopped_s = 9;
  EXPECT_EQ(found(ranks), -2);
  ranks[1].stopped_s = 11;
  EXPECT_EQ(found(ranks), 1);
  EXPECT_THAT(find_hang(ranks, {.silence_s = 10})->description,
              HasSubstr("hangs before its first step: its process is stopped (SIGSTOP, or a debugger) after all_reduce of 8 B, step 5; "
                        "silent for 11.0 s"));
}

TEST(Hangs, both_ends_of_a_message_are_named_where_one_is_elsewhere) {
  // Rank 1 waits for rank 2, which waits for rank 0, which is not at a message.
  std::vector<WatchedRank> ranks = {rank(0, 11, true, "all_reduce"), rank(1, 11, true, "receive"), rank(2, 11, true, "receive")};
  ranks[1].pulse.message_peer = 2, ranks[2].pulse.message_peer = 0;
  const auto hang = find_hang(ranks, {.silence_s = 10});
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->rank, -1);
  EXPECT_THAT(hang->description, HasSubstr("rank 2 (process 102) waits in receive, rank 0 (process 100) in all_reduce"));
}

TEST(Hangs, the_one_that_left_the_common_path_is_meant_where_all_wait) {
  const std::vector<WatchedRank> all = {rank(0, 11, true, "a"), rank(1, 11, true, "a"), rank(2, 11, true, "b")};
  const auto divergence = [] { return std::optional<Divergence>({{1}, "rank 1 began x"}); };
  const auto hang = find_hang(all, {.silence_s = 10}, divergence);
  ASSERT_TRUE(hang);
  EXPECT_EQ(hang->rank, 1);
  EXPECT_THAT(hang->description, HasSubstr("it left the common path, rank 1 began x"));
  EXPECT_EQ(find_hang({rank(0, 11, true), rank(1, 11, true), rank(2, 11, false)}, {.silence_s = 10}, divergence)->rank, 2);
}

TEST(Hangs, ranks_that_begin_or_end_are_not_watched) {
  auto beginning = rank(0, 100, false), absent = rank(1, 100, false);
  beginning.pulse.is_settled = false;
  absent.pulse.process = 0;
  EXPECT_EQ(found({beginning, absent}), -2);
}

TEST(Hangs, without_a_limit_it_follows_the_longest_silence_so_far) {
  EXPECT_EQ(found({rank(0, 119, false)}, {}), -2);
  EXPECT_EQ(found({rank(0, 121, false)}, {}), 0);
  auto slow = rank(0, 199, false);
  slow.pulse.longest_gap_s = 10;
  EXPECT_EQ(found({slow}, {}), -2);
  slow.pulse.age_s = 201;
  EXPECT_EQ(found({slow}, {}), 0);
}

}  // namespace
}  // namespace ingot::resilience
