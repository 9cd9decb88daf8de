#include "train/best_metric.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace ingot::train {
namespace {

StepRecord record_with(double acc, double loss) {
  StepRecord record;
  record.evaluations = {{"other/one", 3, {{"acc", 0.9, {}, true}}}, {"task", 4, {{"acc", acc, {}, true}, {"loss", loss, {}, false}}}};
  return record;
}

TEST(BestMetric, is_found_by_task_or_metric_and_lower_scores_are_better) {
  const auto record = record_with(0.25, 3);
  EXPECT_EQ(BestMetric("task", 0).score_in(record), -0.25) << "the first metric stands for the task";
  EXPECT_EQ(BestMetric("task/loss", 0).score_in(record), 3);
  EXPECT_EQ(BestMetric("other/one/acc", 0).score_in(record), -0.9);
  EXPECT_EQ(BestMetric("other", 0).score_in(record), std::nullopt);
  EXPECT_EQ(BestMetric("validation_loss", 0).score_in(record), std::nullopt);
  StepRecord validated;
  validated.validation_loss = 2.5;
  EXPECT_EQ(BestMetric("validation_loss", 0).score_in(validated), 2.5);
}

TEST(BestMetric, is_waited_for_patiently) {
  BestMetric best("task", 2);
  EXPECT_TRUE(best.take(-0.5, 10));
  EXPECT_FALSE(best.take(-0.5, 20)) << "an equal value is no better";
  EXPECT_TRUE(best.take(-0.6, 30));
  EXPECT_FALSE(best.take(std::nan(""), 40));
  EXPECT_FALSE(best.has_lost_patience());
  EXPECT_FALSE(best.take(INFINITY, 50));
  EXPECT_TRUE(best.has_lost_patience());
  EXPECT_EQ(best.describe(), "task was no better than at step 30 in 2 evaluations");
  BestMetric patient("task", 0);
  for (int64_t step = 1; step < 100; ++step) patient.take(1, step);
  EXPECT_FALSE(patient.has_lost_patience());
}

TEST(BestMetric, comes_back_from_a_checkpoint) {
  BestMetric best("task", 2);
  EXPECT_EQ(best.to_json(), "");
  best.take(-1 / 3.0, 10);
  best.take(0, 20);
  BestMetric again("task", 2);
  again.restore(best.to_json(), "x");
  EXPECT_EQ(again.to_json(), best.to_json());
  EXPECT_FALSE(again.take(-1 / 3.0, 30)) << "to the bit";
  EXPECT_TRUE(again.has_lost_patience());
  BestMetric other("task/loss", 2);
  other.restore(best.to_json(), "x");
  EXPECT_EQ(other.to_json(), "") << "the best of another metric says nothing";
  BestMetric without("task", 1);
  without.take(std::nan(""), 10);
  BestMetric still("task", 1);
  still.restore(without.to_json(), "x");
  EXPECT_TRUE(still.has_lost_patience());
  for (const char* broken : {"x", "[]", R"({"metric":"task"})", R"({"metric":"task","score":"1","step":1,"since_best":1})"})
    EXPECT_THROW(still.restore(broken, "x"), base::CheckpointError) << broken;
}

}  // namespace
}  // namespace ingot::train
