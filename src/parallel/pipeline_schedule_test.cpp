// Every schedule does every pass once, in an order that ends, and wastes as much time and keeps as many activations as the
// literature says.
#include "parallel/pipeline_schedule.h"

#include <gmock/gmock.h>

#include <map>

#include "base/error.h"

namespace ingot::parallel {
namespace {

std::vector<PipelineShape> shapes() {
  std::vector<PipelineShape> all;
  for (const int stages : {1, 2, 3, 4, 8}) {
    for (const int microbatches : {1, 2, 3, 4, 8, 24}) {
      for (const auto schedule : {Schedule::gpipe, Schedule::one_f_one_b, Schedule::zero_bubble})
        all.push_back({schedule, stages, 1, microbatches});
      for (const int chunks : {2, 3})
        if (microbatches % stages == 0) all.push_back({Schedule::interleaved, stages, chunks, microbatches});
    }
  }
  return all;
}

TEST(PipelineSchedule, does_every_pass_once_and_ends) {
  for (const auto& shape : shapes()) {
    check(shape);
    for (int stage = 0; stage < shape.stages; ++stage) {
      std::map<std::tuple<Pass, int, int>, int> seen;
      for (const auto& a : actions_of(shape, stage)) ++seen[{a.pass, a.chunk, a.microbatch}];
      const size_t passes = shape.schedule == Schedule::zero_bubble ? 3 : 2;
      EXPECT_EQ(seen.size(), passes * static_cast<size_t>(shape.chunks * shape.microbatches));
      for (const auto& [what, times] : seen) EXPECT_EQ(times, 1);
    }
    EXPECT_NO_THROW(simulate(shape, {}));
  }
}

// p stages, m microbatches, v chunks; forward 1, both halves of backward 1 each.
TEST(PipelineSchedule, wastes_what_the_formulas_say) {
  for (const int p : {2, 3, 4, 8}) {
    for (const int m : {8, 24}) {
      const double ideal = 3.0 * m;  // on each stage
      for (const auto schedule : {Schedule::gpipe, Schedule::one_f_one_b})
        EXPECT_NEAR(simulate({schedule, p, 1, m}, {}).end, ideal + 3 * (p - 1), 1e-9);
      // Qi et al. 2023: (p - 1)(forward + backward - weights) for ZB-H1.
      EXPECT_NEAR(simulate({Schedule::zero_bubble, p, 1, m}, {}).end, ideal + (p - 1), 1e-9) << p << " " << m;
      // Narayanan et al. 2021: 1/v of it; a piece costs 1/v of a stage.
      for (const int v : {2, 4})
        if (m % p == 0) {
          EXPECT_NEAR(simulate({Schedule::interleaved, p, v, m}, {1.0 / v, 1.0 / v, 1.0 / v}).end, ideal + 3.0 * (p - 1) / v, 1e-9);
        }
    }
  }
}

TEST(PipelineSchedule, keeps_as_many_activations_as_it_promises) {
  for (const int p : {2, 4, 8}) {
    const int m = 24;
    const auto one = simulate({Schedule::one_f_one_b, p, 1, m}, {}), all = simulate({Schedule::gpipe, p, 1, m}, {}),
               zero = simulate({Schedule::zero_bubble, p, 1, m}, {});
    for (int stage = 0; stage < p; ++stage) {
      const auto s = static_cast<size_t>(stage);
      EXPECT_EQ(one.kept[s], p - stage);
      EXPECT_EQ(all.kept[s], m);
      EXPECT_LE(zero.kept[s], p + 1) << "stage " << stage;  // no more than 1F1B's first stage, and the one at work
    }
  }
}

TEST(PipelineSchedule, sizes_without_a_schedule_are_refused) {
  EXPECT_THROW(check({Schedule::interleaved, 4, 1, 8}), base::ConfigError);
  EXPECT_THROW(check({Schedule::interleaved, 4, 2, 6}), base::ConfigError);
  EXPECT_THROW(check({Schedule::one_f_one_b, 4, 2, 8}), base::ConfigError);
  EXPECT_THROW(schedule_from_name("2f2b"), base::ConfigError);
}

TEST(PipelineSchedule, is_drawn_as_in_the_docs) {
  EXPECT_EQ(draw({Schedule::one_f_one_b, 2, 1, 3}, {}),
            "stage 0 |1-- 2--         1'----- 3-- 2'-----     3'----- \n"
            "stage 1 |    1-- 1'----- 2-- 2'----- 3-- 3'-----         \n");
}

}  // namespace
}  // namespace ingot::parallel
