#include "train/metrics/step_queue.h"

#include <gtest/gtest.h>

#include <thread>

#include "train/metrics/settings_by_name.h"

namespace ingot::train {
namespace {

std::vector<int64_t> numbers(const std::vector<StepScalars>& steps) {
  std::vector<int64_t> all;
  for (const auto& step : steps) all.push_back(step.step);
  return all;
}

StepScalars step_of(int64_t step, size_t scalars) { return {0, step, std::vector<Scalar>(scalars)}; }

TEST(StepQueue, batches_keep_the_order_and_have_no_more_scalars_than_asked_unless_one_step_has) {
  StepQueue queue(10);
  for (int64_t step = 1; step <= 4; ++step) queue.push(step_of(step, 3));
  queue.push(step_of(5, 20));
  EXPECT_EQ(numbers(queue.take(7)), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(numbers(queue.take(6)), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(numbers(queue.take(6)), (std::vector<int64_t>{5}));
  queue.close();
  EXPECT_TRUE(queue.take(6).empty());
}

TEST(StepQueue, a_full_queue_drops_the_newest_and_counts) {
  StepQueue queue(2);
  for (int64_t step = 1; step <= 5; ++step) queue.push(step_of(step, 1));
  EXPECT_EQ(queue.dropped(), 3);
  queue.close();
  EXPECT_EQ(numbers(queue.take(100)), (std::vector<int64_t>{1, 2}));
}

TEST(StepQueue, closing_wakes_who_waits) {
  StepQueue queue(2);
  std::thread taker([&] { EXPECT_TRUE(queue.take(1).empty()); });
  queue.close();
  taker.join();
}

TEST(SettingsByName, have_the_names_of_the_table) {
  EXPECT_EQ(
      settings_by_name("[train]\nsteps = 10\nprecision = \"bf16\"\n[[train.phases]]\nname = \"a = b\"\n[[train.phases]]\nlr = 1\n"),
      (NamedSettings{{"train.steps", "10"}, {"train.precision", "bf16"}, {"train.phases.0.name", "a = b"}, {"train.phases.1.lr", "1"}}));
}

}  // namespace
}  // namespace ingot::train
