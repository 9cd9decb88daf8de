#include "plan/recovery.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace ingot::plan {
namespace {

// A failure every 1,000 s, on 100 nodes.
RecoveryCosts frail() {
  return {.reliability = {.device_mtbf_h = 800 * 1000.0 / 3600, .devices = 800, .restart_s = 120, .save_stall_s = 20},
          .nodes = 100,
          .save_every_s = 300,
          .step_s = 5,
          .stay_s = 10,
          .node_loss_share = 0};
}

TEST(Recovery, of_processes_alone_is_what_daly_says) {
  auto costs = frail();
  EXPECT_NEAR(draw_recovery({}, costs, 1000, 1).goodput / expected_goodput(costs.reliability, 300), 1, 0.01);
  EXPECT_NEAR(draw_recovery({}, costs, 1000, 1).failures, 86400, 1000);
  auto stays = costs.reliability;
  stays.restart_s = costs.stay_s;
  EXPECT_NEAR(draw_recovery({.stays = true}, costs, 1000, 1).goodput / expected_goodput(stays, 300), 1, 0.01);
  stays.save_stall_s = costs.memory_stall_s = 0.1;
  EXPECT_NEAR(draw_recovery({.stays = true, .in_memory = true}, costs, 100, 1).goodput / expected_goodput(stays, 5), 1, 0.01);
  costs.save_every_s = 0;
  EXPECT_NEAR(draw_recovery({}, costs, 1000, 1).goodput / expected_goodput(costs.reliability, best_save_interval_s(costs.reliability)), 1,
              0.01);
}

// In the long run node_loss_share * repair / time between failures nodes are away: here 2 (of M/G/infinity), whose work is missing.
TEST(Recovery, without_the_lost_nodes_lacks_their_work_alone) {
  RecoveryCosts costs = frail();
  costs.reliability.restart_s = costs.reliability.save_stall_s = 0;
  costs.save_every_s = 1;
  costs.node_loss_share = 0.1;
  costs.repair_h = 20000.0 / 3600;
  const double down = 0.1 * 20000 / 1000;
  const RecoveryPolicy shrinks{.shrinks = true};
  EXPECT_NEAR(draw_recovery(shrinks, costs, 1000, 3).goodput, 1 - down / 100, 0.002);
  // With spares enough nothing is missing but what they cost; without any and without shrinking it waits as long as one is away.
  const auto spared = draw_recovery({.spares = 10}, costs, 1000, 3);
  EXPECT_NEAR(spared.goodput, 1, 0.002);
  EXPECT_NEAR(spared.goodput_of_paid, spared.goodput * 100 / 110, 1e-12);
  // Nothing fails while it waits: up for 10,000 s, away for 20,000 s.
  const auto waits = draw_recovery({}, costs, 10000, 3);
  EXPECT_NEAR(waits.waiting, 2.0 / 3, 0.01);
  EXPECT_NEAR(waits.goodput, 1.0 / 3, 0.01);
}

TEST(Recovery, has_equal_draws_for_equal_seeds_and_shares_that_add_up) {
  auto costs = frail();
  costs.node_loss_share = 0.3;
  for (const auto& policy : recovery_policies(4)) {
    const auto once = draw_recovery(policy, costs, 50, 11), again = draw_recovery(policy, costs, 50, 11),
               other = draw_recovery(policy, costs, 50, 12);
    EXPECT_EQ(once.goodput, again.goodput) << policy.name;
    EXPECT_NE(once.goodput, other.goodput) << policy.name;
    EXPECT_GT(once.goodput, 0) << policy.name;
    EXPECT_LE(once.goodput + once.waiting + once.recovering, 1 + 1e-9) << policy.name;
  }
  EXPECT_EQ(recovery_policies(0).size(), 5);
}

TEST(Recovery, refuses_what_cannot_be) {
  auto costs = frail();
  EXPECT_THROW(draw_recovery({}, costs, 0, 1), base::ConfigError);
  EXPECT_THROW(draw_recovery({.spares = -1}, costs, 1, 1), base::ConfigError);
  for (double RecoveryCosts::*member :
       {&RecoveryCosts::step_s, &RecoveryCosts::stay_s, &RecoveryCosts::node_loss_share, &RecoveryCosts::repair_h}) {
    auto wrong = costs;
    wrong.*member = -1;
    EXPECT_THROW(draw_recovery({}, wrong, 1, 1), base::ConfigError);
  }
}

}  // namespace
}  // namespace ingot::plan
