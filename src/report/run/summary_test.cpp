#include "report/run/summary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace ingot::report {
namespace {

TEST(Summary, quantiles_interpolate_and_leave_out_nan) {
  EXPECT_EQ(quantile({3, 1, 2}, 0.5), 2);
  EXPECT_EQ(quantile({4, 1, 2, 3}, 0.5), 2.5);
  EXPECT_EQ(quantile({1, NAN, 3}, 1), 3);
  EXPECT_EQ(quantile({10, 20}, 0.25), 12.5);
  EXPECT_TRUE(std::isnan(quantile({NAN}, 0.5)));
}

TEST(Summary, headline_numbers_of_a_run_reckoned_by_hand) {
  const auto metrics = read_metrics(
      R"({"step":1,"steps":5,"tokens":100,"loss":9,"step_ms":900,"tokens_per_s":10,"memory_peak_bytes":50,"predicted_step_ms":120,"predicted_memory_bytes":60}
{"step":2,"steps":5,"tokens":200,"loss":5,"step_ms":100,"tokens_per_s":90,"memory_peak_bytes":80,"predicted_step_ms":120,"validation_loss":5.5}
{"step":3,"steps":5,"tokens":300,"loss":4,"step_ms":140,"tokens_per_s":70,"memory_peak_bytes":80,"predicted_step_ms":120,"resumed":true,"validation_loss":4.5}
{"step":4,"steps":5,"tokens":400,"loss":3,"step_ms":110,"tokens_per_s":80,"memory_peak_bytes":70,"predicted_step_ms":110,"validation_loss":4.75}
)");
  const Summary s = summarise(metrics);
  EXPECT_EQ(s.last_step, 4);
  EXPECT_EQ(s.planned_steps, 5);
  EXPECT_EQ(s.tokens, 400);
  EXPECT_EQ(s.first_loss, 9);
  EXPECT_EQ(s.final_loss, 3);
  EXPECT_EQ(s.best_validation, 4.5);
  EXPECT_EQ(s.best_validation_step, 3);
  // Steps 1 and 3 are first after a start: the medians are of steps 2 and 4.
  EXPECT_EQ(s.step_ms, 105);
  EXPECT_EQ(s.tokens_per_s, 85);
  EXPECT_EQ(s.memory_bytes, 80);
  EXPECT_DOUBLE_EQ(s.step_error(), 110.0 / 105 - 1);
  EXPECT_DOUBLE_EQ(s.memory_error(), -0.25);
  EXPECT_DOUBLE_EQ(s.training_s, 1.25);
  EXPECT_TRUE(std::isnan(s.mfu));
  EXPECT_TRUE(std::isnan(s.expert_imbalance));
}

TEST(Summary, a_run_without_a_line_or_with_one_is_no_trouble) {
  EXPECT_TRUE(std::isnan(summarise(Metrics{}).final_loss));
  const Summary one = summarise(read_metrics("{\"step\":1,\"loss\":2,\"step_ms\":10}"));
  EXPECT_EQ(one.step_ms, 10);
  EXPECT_EQ(one.recent_loss, 2);
}

TEST(Summary, json_has_null_for_what_is_unknown) {
  std::vector<RunData> runs(1);
  runs[0].name = "a\xff";
  const auto document = summary_json(runs);
  EXPECT_TRUE(document["runs"][0]["mfu"].is_null());
  EXPECT_EQ(document["runs"][0]["restarts"], 0);
}

}  // namespace
}  // namespace ingot::report
