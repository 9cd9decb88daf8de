#include "resilience/straggler_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::resilience {
namespace {

using testing::IsEmpty;

class StragglerExchangeTest : public testing::Test {
 protected:
  static Round round(size_t own, int64_t number = 3) {
    return {.number = number,
            .first = 0,
            .nodes = {{.id = 0, .ranks = 2, .host = "a", .address = ""},
                      {.id = 1, .ranks = 2, .host = "b", .address = ""},
                      {.id = 4, .ranks = 2, .host = "c", .address = ""}},
            .own = own,
            .port = 0};
  }
  // Of the two ranks of a node.
  static std::vector<RankSteps> steps(int node, double own_s, int64_t last = 20) {
    std::vector<RankSteps> ranks;
    for (int i = 0; i < 2; ++i) {
      ranks.push_back({.rank = 2 * node + i, .role = 0, .steps = {}, .node = {}, .remark = {}});
      for (int64_t step = last - 17; step <= last; ++step) ranks.back().steps.push_back({step, own_s, 0.001, 0});
    }
    return ranks;
  }
  StragglerExchange exchange(size_t own, const std::string& remark = "") {
    StragglerExchange made(
        store_, [remark] { return remark; }, 0);
    made.begin(round(own));
    return made;
  }

  std::shared_ptr<NodeStore> store_ = make_memory_store();
};

TEST_F(StragglerExchangeTest, a_node_whose_ranks_are_all_slow_is_found) {
  auto a = exchange(0), b = exchange(1), c = exchange(2, "hot");
  EXPECT_THAT(a.look(steps(0, 0.1)).stragglers, IsEmpty());  // the others have not told yet
  EXPECT_THAT(b.look(steps(1, 0.1)).stragglers, IsEmpty());
  EXPECT_THAT(c.look(steps(2, 0.2)).stragglers, IsEmpty());
  const auto found = a.look(steps(0, 0.1, 30)).stragglers;
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].node, "c");
  EXPECT_EQ(found[0].description, "rank 4 on c takes 200.0 ms of computing a step, the others 100.0 ms (medians of 16 steps); hot");
  EXPECT_EQ(found[1].rank, 5);
  EXPECT_THAT(a.look(steps(0, 0.1, 40)).stragglers, IsEmpty()) << "named once";
  b.look(steps(1, 0.1, 60)), c.look(steps(2, 0.1, 60));
  const auto recovered = a.look(steps(0, 0.1, 60)).recovered;
  ASSERT_EQ(recovered.size(), 2U);
  EXPECT_EQ(recovered[0].node, "c");
  EXPECT_EQ(recovered[0].description, "rank 4 is as fast as the others again");
}

TEST_F(StragglerExchangeTest, what_was_told_in_another_round_or_by_nobody_is_not_compared) {
  auto a = exchange(0), b = exchange(1), c = exchange(2);
  b.look(steps(1, 0.1)), c.begin(round(2, 2)), c.look(steps(2, 0.2));
  EXPECT_THAT(a.look(steps(0, 0.1)).stragglers, IsEmpty());
  store_->put("steps.4", "{\"round\": 3, \"ranks\": [{\"rank\": 4, \"role\": 0, \"steps\": [[1]]}], \"remark\": \"\"}");
  EXPECT_THAT(a.look(steps(0, 0.1)).stragglers, IsEmpty());
  store_->put("steps.4", "no JSON");
  EXPECT_THAT(a.look(steps(0, 0.1)).stragglers, IsEmpty());
  c.begin(round(2)), c.look(steps(2, 0.2));
  EXPECT_EQ(a.look(steps(0, 0.1)).stragglers.size(), 2U);
}

TEST_F(StragglerExchangeTest, of_one_node_nothing_is_written_and_its_own_remark_is_said) {
  StragglerExchange alone(
      store_, [] { return "this machine has counted meanwhile: 3 times throttled for heat"; }, 0);
  auto round = StragglerExchangeTest::round(0);
  round.nodes.resize(1);
  alone.begin(round);
  auto own = steps(0, 0.1);
  for (auto& step : own[1].steps) step.own_s = 0.15;
  const auto found = alone.look(own).stragglers;
  ASSERT_EQ(found.size(), 1U);
  EXPECT_THAT(found[0].description, testing::AllOf(testing::StartsWith("rank 1 takes 150.0 ms"),
                                                   testing::EndsWith("; this machine has counted meanwhile: 3 times throttled for heat")));
  EXPECT_EQ(store_->get("steps.0"), std::nullopt);
}

}  // namespace
}  // namespace ingot::resilience
