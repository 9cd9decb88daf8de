// Simulated steps against closed formulas, the pipeline schedules' own timelines, and direct draws of random numbers.
#include "plan/simulation.h"

#include <gtest/gtest.h>

#include <random>

#include "base/error.h"

namespace ingot::plan {
namespace {

using parallel::PipelineShape;
using parallel::Schedule;

SimulatedStep step_of(const PipelineShape& pipeline, int64_t replicas, const StageWork& work) {
  return {.pipeline = pipeline, .stages = std::vector<StageWork>(static_cast<size_t>(pipeline.stages), work), .replicas = replicas};
}
PipelineShape alone(int microbatches) { return {Schedule::one_f_one_b, 1, 1, microbatches}; }

TEST(SimulatedStep, of_one_rank_is_its_passes_and_its_update) {
  const auto outcome = simulate_step(step_of(alone(5), 1, {.forward_s = 1, .backward_s = 2, .optimizer_s = 3}));
  EXPECT_DOUBLE_EQ(outcome.step_s, 5 * 3 + 3);
  EXPECT_TRUE(outcome.is_complete);
  EXPECT_DOUBLE_EQ(outcome.stages[0].compute_s, 18);
  EXPECT_DOUBLE_EQ(outcome.stages[0].stages_wait_s, 0);
}

TEST(SimulatedStep, of_every_pipeline_schedule_ends_when_its_timeline_does) {
  for (const auto schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::interleaved, Schedule::zero_bubble})
    for (const int stages : {2, 4})
      for (const int microbatches : {4, 8, 16}) {
        const PipelineShape shape{schedule, stages, schedule == Schedule::interleaved ? 3 : 1, microbatches};
        const auto timeline = parallel::simulate(shape, {});
        // A whole stage's forward takes as long as its pieces together, backward twice that.
        const double chunks = shape.chunks;
        const auto outcome = simulate_step(step_of(shape, 3, {.forward_s = chunks, .backward_s = 2 * chunks}));
        EXPECT_NEAR(outcome.step_s, timeline.end, 1e-9) << static_cast<int>(schedule) << " " << stages << " " << microbatches;
      }
}

TEST(SimulatedStep, stages_of_unequal_work_wait_for_the_longest) {
  auto step = step_of({Schedule::gpipe, 2, 1, 2}, 1, {.forward_s = 1, .backward_s = 2});
  step.stages[1] = {.forward_s = 3, .backward_s = 4};
  step.stages[0].handover_s = 0.5;
  step.stages[0].handover_latency_s = 0.25;
  // Forward of stage 1: 1.75 to 4.75 to 7.75; backward to 11.75 and 15.75; stage 0's last begins at 16.5.
  const auto outcome = simulate_step(step);
  EXPECT_DOUBLE_EQ(outcome.step_s, 18.5);
  EXPECT_DOUBLE_EQ(outcome.stages[0].compute_s, 6);
  EXPECT_DOUBLE_EQ(outcome.stages[1].stages_wait_s, 1.75);
}

TEST(SimulatedStep, sums_of_gradients_hide_behind_what_is_left_of_backward) {
  const auto end = [](double sum_s, bool hides, int64_t zero = 0) {
    auto step = step_of(alone(3), 2, {.forward_s = 1, .backward_s = 2, .sum_gradients_s = sum_s, .segments = 4});
    step.communication_hides = hides;
    step.zero = zero;
    return simulate_step(step).step_s;
  };
  EXPECT_DOUBLE_EQ(end(1, true), 9 + 0.25);         // the last segment's
  EXPECT_DOUBLE_EQ(end(8, true), 9 - 2 + 0.5 + 8);  // from the first segment on
  EXPECT_DOUBLE_EQ(end(1, false), 9 + 1);
  EXPECT_DOUBLE_EQ(end(1, true, 2), 9 + 0.25);  // of every microbatch
  EXPECT_DOUBLE_EQ(end(8, true, 2), 1 + 0.5 + 3 * 8);
}

TEST(SimulatedStep, weights_are_gathered_ahead_of_the_first_forward_or_of_every_pass) {
  const auto end = [](double gather_s, int64_t zero, bool hides = true) {
    auto step = step_of(alone(3), 2, {.forward_s = 1, .backward_s = 2, .gather_weights_s = gather_s, .segments = 4});
    step.zero = zero;
    step.communication_hides = hides;
    return simulate_step(step).step_s;
  };
  EXPECT_DOUBLE_EQ(end(0.4, 0), 9);
  EXPECT_DOUBLE_EQ(end(0.4, 1), 9 + 0.1);
  EXPECT_DOUBLE_EQ(end(8, 1), 9 - 1 + 8 + 0.25);
  EXPECT_NEAR(end(0.4, 3), 9 + 6 * 0.1, 1e-12);
  EXPECT_NEAR(end(8, 3), 6 * (2 + 3 * 2) + 3 * (0.25 + 0.5), 1e-12);  // each pass as long as its gathers, and its last segment
  EXPECT_DOUBLE_EQ(end(0.4, 1, false), 9 + 0.4);
  EXPECT_NEAR(end(0.4, 3, false), 9 + 6 * 0.4, 1e-12);
}

TEST(SimulatedStep, a_slow_rank_holds_up_all) {
  auto step = step_of(alone(2), 8, {.forward_s = 1, .backward_s = 2, .optimizer_s = 1, .sum_gradients_s = 0.5});
  step.unit_ranks = 4;
  const auto outcome = simulate_step(step, {.slow = {{13, 1.5}}});
  EXPECT_DOUBLE_EQ(outcome.step_s, 1.5 * 6 + 0.5 + 1.5);
  EXPECT_NEAR(outcome.stages[0].gradients_wait_s, (7 * (9.5 - 6) + 0.5) / 8, 1e-12);
  // So does one of many drawn at random; with none drawn nothing happens.
  EXPECT_DOUBLE_EQ(simulate_step(step, {.slow_share = 1, .slow_factor = 1.5}).step_s, outcome.step_s);
  EXPECT_DOUBLE_EQ(simulate_step(step, {.slow_share = 1e-12, .slow_factor = 1.5}).step_s, 6 + 0.5 + 1);
}

TEST(SimulatedStep, jitter_costs_what_the_slowest_of_all_ranks_draws) {
  constexpr double kJitter = 0.1;
  const auto mean_over_seeds = [](int64_t replicas, int64_t unit_ranks) {
    auto step = step_of(alone(1), replicas, {.forward_s = 1});
    step.unit_ranks = unit_ranks;
    double sum = 0;
    for (uint64_t seed = 0; seed < 400; ++seed) sum += simulate_step(step, {.jitter = kJitter, .seed = seed}).step_s;
    return sum / 400;
  };
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  double expected = 0;
  for (int i = 0; i < 4000; ++i) {
    double most = -1e9;
    for (int rank = 0; rank < 128; ++rank) most = std::max(most, normal(random));
    expected += std::exp(kJitter * most) / 4000;
  }
  EXPECT_NEAR(mean_over_seeds(128, 1), expected, 0.01);
  EXPECT_NEAR(mean_over_seeds(16, 8), expected, 0.01);
  EXPECT_NEAR(mean_over_seeds(1, 128), expected, 0.01);
  EXPECT_NEAR(mean_over_seeds(1, 1), std::exp(kJitter * kJitter / 2), 0.02);
}

TEST(SimulatedStep, the_dead_keep_the_living_waiting) {
  auto step = step_of(alone(2), 4, {.forward_s = 1, .backward_s = 2, .sum_gradients_s = 1});
  auto outcome = simulate_step(step, {.failures = {{2, 4.5}}});
  EXPECT_FALSE(outcome.is_complete);
  EXPECT_EQ(outcome.dead, 1);
  EXPECT_EQ(outcome.waiting_for_gradients, 3);
  EXPECT_DOUBLE_EQ(outcome.step_s, 6);  // when the others came to a halt
  step = step_of({Schedule::one_f_one_b, 4, 1, 8}, 2, {.forward_s = 1, .backward_s = 2});
  outcome = simulate_step(step, {.failures = {{2 * 2, 0.5}}});  // a replica of the third stage, before its first microbatch
  EXPECT_EQ(outcome.dead, 1);
  EXPECT_EQ(outcome.waiting_for_stages, 3);
  EXPECT_EQ(outcome.waiting_for_gradients, 4);
  EXPECT_TRUE(simulate_step(step, {.failures = {{2 * 2, 1e6}}}).is_complete);
}

TEST(SimulatedStep, of_a_hundred_thousand_ranks_is_that_of_a_few) {
  const StageWork work{.forward_s = 1, .backward_s = 2, .sum_gradients_s = 0.5, .segments = 4};
  const PipelineShape pipeline{Schedule::one_f_one_b, 10, 1, 20};
  auto small = step_of(pipeline, 2, work), large = step_of(pipeline, 1250, work);
  large.unit_ranks = 8;
  EXPECT_EQ(large.ranks(), 100'000);
  const auto outcome = simulate_step(large);
  EXPECT_DOUBLE_EQ(outcome.step_s, simulate_step(small).step_s);
  EXPECT_GT(outcome.events, 10 * 1250 * 40);
}

TEST(SimulatedStep, waits_are_filled_by_ranks_on_the_same_core) {
  // Of ranks that are alone: half of all times. With 2 stages 6 of work and 3 of waiting, with 4 stages 6 and 9.
  const StageWork work{.forward_s = 2, .backward_s = 4};
  const auto end = [&](int stages) {
    return simulate_step(on_shared_cores(step_of({Schedule::one_f_one_b, stages, 1, 2}, 1, work), 2)).step_s;
  };
  EXPECT_NEAR(end(2), 12, 1e-9) << "all work of both";
  EXPECT_NEAR(end(4), 15, 1e-9) << "no faster than alone";
  EXPECT_NEAR(simulate_step(on_shared_cores(step_of(alone(5), 2, work), 2)).step_s, 30, 1e-9) << "nobody waits";
}

TEST(SimulatedStep, impossible_sizes_are_refused) {
  const StageWork work{.forward_s = 1, .backward_s = 2};
  EXPECT_THROW(simulate_step(step_of(alone(1), 0, work)), base::ConfigError);
  EXPECT_THROW(simulate_step(step_of(alone(1), 1, {.forward_s = -1})), base::ConfigError);
  EXPECT_THROW(simulate_step(step_of(alone(1), 1, {.forward_s = NAN})), base::ConfigError);
  EXPECT_THROW(simulate_step(step_of(alone(1), 4, work), {.slow = {{4, 2}}}), base::ConfigError);
  EXPECT_THROW(simulate_step(step_of(alone(1), 4, work), {.slow = {{0, 0.5}}}), base::ConfigError);
  EXPECT_THROW(simulate_step(step_of(alone(1), 4, work), {.failures = {{0, -1}}}), base::ConfigError);
  EXPECT_THROW(simulate_step(step_of(alone(1), 4, work), {.jitter = -1}), base::ConfigError);
}

}  // namespace
}  // namespace ingot::plan
