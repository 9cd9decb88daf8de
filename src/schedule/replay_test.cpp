// Times of small programs against closed forms.
#include "schedule/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace ingot::schedule {
namespace {

// By names: a price for each operation whose name starts so.
Durations priced(std::vector<std::pair<std::string, double>> prices) {
  return [prices = std::move(prices)](const Operation& operation) {
    for (const auto& [name, price] : prices)
      if (operation.name.starts_with(name)) return Duration(price);
    return Duration(0);
  };
}

Communication message_to(Kind kind, int own, int peer) { return {kind, {.first = own}, 8, 1, peer}; }

// p ranks; each computes on what it has while it goes round.
Program ring(int ranks) {
  Program program;
  for (int rank = 0; rank < ranks; ++rank) {
    OperationList list;
    int here = list.add("begin", Stream::compute, Move{8});
    for (int step = 0; step < ranks; ++step) {
      const int now = here;
      if (step + 1 < ranks) {
        list.add("hop", Stream::sending, message_to(Kind::send, rank, (rank + 1) % ranks), {now});
        here = list.add("hop", Stream::receiving, message_to(Kind::receive, rank, (rank + ranks - 1) % ranks), {now});
      }
      list.add("work", Stream::compute, Move{8}, {now});
    }
    program.ranks.push_back(std::move(list));
  }
  return program;
}

class Rings : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Rings, ::testing::Values(2, 3, 5, 8), [](const auto& info) { return std::to_string(info.param); });

TEST_P(Rings, a_hop_hides_behind_work_or_work_behind_a_hop) {
  const int p = GetParam();
  for (const auto& [hop, work] : {std::pair{1.0, 4.0}, {4.0, 1.0}, {2.0, 2.0}}) {
    const auto result = replay(ring(p), priced({{"hop", hop}, {"work", work}}));
    EXPECT_DOUBLE_EQ(result.time_s, work + (p - 1) * std::max(hop, work));
    EXPECT_DOUBLE_EQ(result.exposed_s, (p - 1) * std::max(0.0, hop - work));
    EXPECT_DOUBLE_EQ(result.ranks[0].busy_s[static_cast<size_t>(Stream::sending)], (p - 1) * hop);
  }
}

TEST(Replay, what_is_waited_for_is_exposed_and_what_is_not_is_hidden) {
  for (const double gather : {1.0, 3.0, 10.0}) {
    Program program;
    for (int rank = 0; rank < 2; ++rank) {
      OperationList list;
      const int gathered = list.add("gather", Stream::collective, Communication{Kind::all_gather, {0, 2, 1}, 16, 1});
      list.add("beside", Stream::compute, Move{1});
      list.add("after", Stream::compute, Move{1}, {gathered});
      program.ranks.push_back(std::move(list));
    }
    const auto result = replay(program, priced({{"gather", gather}, {"beside", 3}, {"after", 2}}));
    EXPECT_DOUBLE_EQ(result.time_s, std::max(gather, 3.0) + 2);
    EXPECT_DOUBLE_EQ(result.exposed_s, std::max(0.0, gather - 3));
  }
}

TEST(Replay, a_collective_waits_for_the_slowest) {
  Program program;
  for (int rank = 0; rank < 3; ++rank) {
    OperationList list;
    const int before = list.add(rank == 1 ? "slow" : "fast", Stream::compute, Move{1});
    list.add("sum", Stream::collective, Communication{Kind::all_reduce, {0, 3, 1}, 16, 1}, {before});
    program.ranks.push_back(std::move(list));
  }
  const auto result = replay(program, priced({{"slow", 7}, {"fast", 1}, {"sum", 2}}));
  EXPECT_DOUBLE_EQ(result.time_s, 9);
  EXPECT_DOUBLE_EQ(result.exposed_s, 2);
  EXPECT_DOUBLE_EQ(result.ranks[0].spans[1].begin_s, 7);
}

TEST(Replay, latency_delays_a_message_and_not_the_next_one) {
  Program program;
  for (int rank = 0; rank < 2; ++rank) {
    OperationList list;
    for (int i = 0; i < 5; ++i)
      list.add("block", rank == 0 ? Stream::sending : Stream::receiving,
               message_to(rank == 0 ? Kind::send : Kind::receive, rank, 1 - rank));
    program.ranks.push_back(std::move(list));
  }
  EXPECT_DOUBLE_EQ(replay(program, [](const Operation&) { return Duration(2, 7); }).time_s, 5 * 2 + 7);
}

TEST(Replay, a_missing_partner_and_a_wrong_one_are_named) {
  const auto words_of = [](const Program& program) -> std::string {
    try {
      replay(program, priced({}));
    } catch (const base::CommError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  OperationList sends, gathers, sums, nothing;
  sends.add("state on", Stream::sending, message_to(Kind::send, 0, 1));
  gathers.add("gather k v", Stream::collective, Communication{Kind::all_gather, {0, 2, 1}, 16, 1});
  sums.add("sum gradients", Stream::collective, Communication{Kind::all_reduce, {0, 2, 1}, 16, 1});
  EXPECT_THAT(words_of({{sends, nothing}}), ::testing::HasSubstr("rank 0 would wait for ever in 0 'state on': 1 of 2"));
  EXPECT_THAT(words_of({{gathers, sums}}), ::testing::HasSubstr("rank 0's all_gather 'gather k v' of 16 bytes meets rank 1's all_reduce"));
}

TEST(Replay, a_circle_of_waiting_is_found) {
  Program program;
  for (int rank = 0; rank < 2; ++rank) {
    OperationList list;
    const int received = list.add("receive", Stream::receiving, message_to(Kind::receive, rank, 1 - rank));
    list.add("send", Stream::sending, message_to(Kind::send, rank, 1 - rank), {received});
    program.ranks.push_back(std::move(list));
  }
  EXPECT_THROW(replay(program, priced({})), base::CommError);
}

}  // namespace
}  // namespace ingot::schedule
