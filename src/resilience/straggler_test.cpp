// Which ranks are slow, from what steps took of their own time.
#include "resilience/straggler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

namespace ingot::resilience {
namespace {

using ::testing::HasSubstr;

// Step by step; `own` gives a rank's seconds in a step.
template <class Own>
std::vector<std::pair<int64_t, int>> named(int ranks, int64_t steps, const Own& own, std::vector<int>* recovered = nullptr) {
  StragglerWatch watch;
  std::vector<RankSteps> all;
  for (int r = 0; r < ranks; ++r) all.push_back({.rank = r, .role = 0, .steps = {}});
  std::vector<std::pair<int64_t, int>> found;
  for (int64_t step = 1; step <= steps; ++step) {
    for (auto& rank : all) {
      rank.steps.push_back({.step = step, .own_s = own(rank.rank, step), .waited_s = 0, .data_s = 0});
      if (rank.steps.size() > comm::HeartbeatBoard::kStepsKept) rank.steps.erase(rank.steps.begin());
    }
    for (const auto& straggler : watch.look(all)) found.emplace_back(step, straggler.rank);
    for (const int rank : watch.take_recovered())
      if (recovered) recovered->push_back(rank);
  }
  return found;
}

TEST(Stragglers, a_slow_rank_is_named_once_and_within_twenty_steps) {
  std::mt19937 random(3);
  for (const int ranks : {2, 3, 8}) {
    std::vector<int> recovered;
    const auto found = named(
        ranks, 400,
        [&](int rank, int64_t step) {
          return (rank == 1 && step > 100 && step <= 300 ? 0.13 : 0.10) * (0.97 + 6e-5 * static_cast<double>(random() % 1000));
        },
        &recovered);
    ASSERT_EQ(found.size(), 1u) << ranks;
    EXPECT_EQ(found[0].second, 1);
    EXPECT_GT(found[0].first, 100);
    EXPECT_LE(found[0].first, 120);
    EXPECT_EQ(recovered, std::vector<int>{1});
  }
}

// Seen on a busy machine: a rank that shares its core for a tenth of a second, of steps of 5 ms.
TEST(Stragglers, short_steps_are_slow_for_a_second_before_a_rank_is_named) {
  const auto found = [](int64_t until) {
    return named(4, 600, [until](int rank, int64_t step) { return rank == 1 && step > 100 && step <= until ? 0.010 : 0.005; });
  };
  EXPECT_TRUE(found(140).empty());
  EXPECT_TRUE(found(190).empty());
  const auto lasting = found(600);
  ASSERT_EQ(lasting.size(), 1u);
  EXPECT_GE(lasting[0].first, 195);
  EXPECT_LE(lasting[0].first, 205);
}

TEST(Stragglers, noise_names_nobody) {
  // A third of all steps of each rank take up to three times as long, as on a machine with others.
  std::mt19937 random(7);
  const auto noisy = [&](int, int64_t) {
    return 0.010 * (random() % 3 == 0 ? 1 + 2.0 * static_cast<double>(random() % 1000) / 1000 : 1.0);
  };
  EXPECT_TRUE(named(4, 200'000, noisy).empty());
}

TEST(Stragglers, what_is_short_or_not_much_slower_is_nobodys_business) {
  EXPECT_TRUE(named(4, 200, [](int rank, int64_t) { return rank == 2 ? 0.0115 : 0.010; }).empty());
  EXPECT_TRUE(named(4, 200, [](int rank, int64_t) { return rank == 2 ? 2e-4 : 1e-4; }).empty());
  EXPECT_TRUE(named(1, 200, [](int, int64_t) { return 1.0; }).empty());
}

TEST(Stragglers, one_that_waits_for_batches_is_told_apart) {
  StragglerWatch watch;
  std::vector<Straggler> found;
  for (int64_t last = 20; last < 40 && found.empty(); ++last) {
    std::vector<RankSteps> ranks;
    for (int r = 0; r < 3; ++r) {
      ranks.push_back({.rank = r, .role = 0, .steps = {}});
      for (int64_t step = last - 19; step <= last; ++step) ranks.back().steps.push_back({step, 0.01, 0.09, r == 2 ? 0.05 : 0.0});
    }
    found = watch.look(ranks);
  }
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].is_data);
  EXPECT_THAT(found[0].description, HasSubstr("rank 2 takes 50.0 ms for its batch"));
}

TEST(Stragglers, only_ranks_with_the_same_to_do_are_compared) {
  StragglerWatch watch;
  for (int64_t last = 20; last < 60; ++last) {
    std::vector<RankSteps> ranks;
    for (int r = 0; r < 4; ++r) {
      ranks.push_back({.rank = r, .role = r / 2, .steps = {}});
      for (int64_t step = last - 19; step <= last; ++step) ranks.back().steps.push_back({step, r < 2 ? 0.01 : 0.02, 0, 0});
    }
    EXPECT_TRUE(watch.look(ranks).empty());
  }
}

}  // namespace
}  // namespace ingot::resilience
