#include "plan/run_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace ingot::plan {
namespace {

TEST(RunTime, parts_add_up) {
  const auto t = predict_run_time(
      {.steps = 100, .step_s = 2, .validations = 4, .validation_s = 3, .save_every = 25, .save_work_s = 0.5, .save_write_s = 10});
  EXPECT_DOUBLE_EQ(t.steps_s, 200);
  EXPECT_DOUBLE_EQ(t.validation_s, 12);
  EXPECT_EQ(t.saves, 4);
  EXPECT_DOUBLE_EQ(t.saves_s, 4 * 0.5 + 10) << "one is waited for, at the end";
  EXPECT_DOUBLE_EQ(t.data_s, 0);
  EXPECT_DOUBLE_EQ(t.total_s(), 224);
  EXPECT_DOUBLE_EQ(t.goodput(), 200.0 / 224);
}

TEST(RunTime, storage_counts_where_it_is_slower_than_the_steps) {
  EXPECT_DOUBLE_EQ(predict_run_time({.steps = 10, .step_s = 2, .load_s = 1.5}).data_s, 1.5) << "the first batch";
  EXPECT_DOUBLE_EQ(predict_run_time({.steps = 10, .step_s = 2, .load_s = 5}).total_s(), 50 + 2) << "ten batches, and the last step";
  // Ten steps of a second between saves that take 30 s to write.
  const auto t = predict_run_time({.steps = 40, .step_s = 1, .save_every = 10, .save_write_s = 30});
  EXPECT_DOUBLE_EQ(t.total_s(), 10 + 4 * 30);
}

TEST(RunTime, the_last_steps_are_saved_too) {
  EXPECT_EQ(predict_run_time({.steps = 101, .step_s = 1, .save_every = 25}).saves, 5);
  EXPECT_EQ(predict_run_time({.steps = 5, .step_s = 1, .save_every = 25}).saves, 1);
  EXPECT_EQ(predict_run_time({.steps = 5, .step_s = 1}).saves, 0);
}

TEST(RunTime, failures_take_what_their_formula_says) {
  RunPlan plan{.steps = 1000, .step_s = 1, .save_every = 100, .save_work_s = 2, .device_mtbf_h = 1, .restart_s = 60, .devices = 4};
  const auto t = predict_run_time(plan);
  const double failures_per_s = 4.0 / 3600;
  const double between_s = std::exp(failures_per_s * 60) * (std::exp(failures_per_s * 102) - 1) / failures_per_s;
  EXPECT_NEAR(t.total_s(), 10 * between_s, 1e-6 * t.total_s());
  EXPECT_GT(t.failures_s, 0);
  plan.save_every = 0;
  EXPECT_GT(predict_run_time(plan).failures_s, t.failures_s) << "nothing is saved";
  plan.device_mtbf_h = 0;
  EXPECT_EQ(predict_run_time(plan).failures_s, 0);
  plan.device_mtbf_h = 1e-6;
  EXPECT_TRUE(std::isinf(predict_run_time(plan).total_s()));
  plan.restart_s = -1;
  EXPECT_THROW(predict_run_time(plan), base::ConfigError);
}

TEST(RunTime, rates_come_from_the_profile) {
  MachineProfile profile;
  EXPECT_EQ(save_work_s(1e9, profile), 0);
  EXPECT_EQ(save_write_s(1e9, profile), 0);
  EXPECT_EQ(random_reads_s(1e3, profile), 0);
  profile.memory = {{"copy", 1 << 10, 9e12}, {"copy", 1 << 30, 10e9}, {"dot", 1 << 30, 20e9}, {"triad", 1 << 30, 1}};
  EXPECT_DOUBLE_EQ(save_work_s(1e9, profile), 0.2 + 0.05);
  profile.storage = {{.operation = "checkpoint_write", .bytes_per_s = 5e8},
                     {.operation = "sequential_write", .bytes_per_s = 5e12},
                     {.operation = "random_read", .block_bytes = 4096, .direct = false, .operations_per_s = 1e6},
                     {.operation = "random_read", .block_bytes = 65536, .direct = true, .operations_per_s = 9e6},
                     {.operation = "random_read", .block_bytes = 4096, .direct = true, .operations_per_s = 1e4}};
  EXPECT_DOUBLE_EQ(save_write_s(1e9, profile), 2);
  EXPECT_DOUBLE_EQ(random_reads_s(1e3, profile), 0.1);
}

}  // namespace
}  // namespace ingot::plan
