#include "plan/track_record.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/files.h"

namespace ingot::plan {
namespace {

namespace fs = std::filesystem;

// predicted one second and a thousand bytes.
Outcome outcome(const std::string& shape, double measured_s, int64_t measured_bytes = 1000) {
  return {.date = "2026-11-23T00:00:00Z",
          .run = "r",
          .version = "1",
          .machine = "profile-here-2.json",
          .family = "llama",
          .precision = "fp32",
          .layout = "1 rank",
          .shape = shape,
          .steps = 10,
          .predicted_step_s = 1,
          .measured_step_s = measured_s,
          .predicted_memory_bytes = 1000,
          .measured_memory_bytes = measured_bytes};
}

TEST(TrackRecord, a_prediction_is_calibrated_by_other_runs_of_its_kind) {
  const std::vector<Outcome> record = {outcome("a", 1.1, 1050), outcome("b", 1.3, 1100), outcome("c", 1.2, 1000)};
  const auto found = calibration_for(outcome("new", 0), record);
  ASSERT_TRUE(found.step);
  EXPECT_EQ(found.step.runs, 3);
  EXPECT_DOUBLE_EQ(found.step.median, 1.2);
  EXPECT_NEAR(found.step.low, 1.12, 1e-12);
  EXPECT_NEAR(found.step.high, 1.28, 1e-12);
  EXPECT_DOUBLE_EQ(found.memory.median, 1.05);
}

TEST(TrackRecord, a_run_is_not_calibrated_by_itself_nor_by_strangers) {
  std::vector<Outcome> record = {outcome("a", 1.1), outcome("b", 1.3), outcome("c", 1.2)};
  EXPECT_FALSE(calibration_for(outcome("a", 0), record).step) << "two others are too few";
  const auto changed = [&](auto&& change) {
    auto copy = record;
    for (auto& o : copy) change(o);
    return calibration_for(outcome("new", 0), copy);
  };
  EXPECT_TRUE(changed([](Outcome& o) { o.run = "other"; }).step);
  EXPECT_FALSE(changed([](Outcome& o) { o.machine = "other"; }).step);
  EXPECT_FALSE(changed([](Outcome& o) { o.family = "zaya1"; }).step);
  EXPECT_FALSE(changed([](Outcome& o) { o.precision = "bf16"; }).step);
  EXPECT_FALSE(changed([](Outcome& o) { o.version = "2"; }).step);
  EXPECT_FALSE(changed([](Outcome& o) { o.ranks = 2; }).step);
  EXPECT_FALSE(changed([](Outcome& o) { o.predicted_step_s = 0; }).step);
  const auto disturbed = changed([](Outcome& o) { o.foreign_load = 0.2; });
  EXPECT_FALSE(disturbed.step);
  EXPECT_TRUE(disturbed.memory) << "which others do not touch";
}

TEST(TrackRecord, a_run_that_was_repeated_counts_once_with_its_last_measurement) {
  const std::vector<Outcome> record = {outcome("a", 5), outcome("b", 1.3), outcome("c", 1.2), outcome("a", 1.1), outcome("a", 1.25)};
  const auto found = calibration_for(outcome("new", 0), record);
  EXPECT_EQ(found.step.runs, 3);
  EXPECT_DOUBLE_EQ(found.step.median, 1.25);
  EXPECT_DOUBLE_EQ(last_like(outcome("a", 0), record)->measured_step_s, 1.25);
  EXPECT_EQ(last_like(outcome("new", 0), record), nullptr);
}

TEST(TrackRecord, raw_and_calibrated_errors_are_told_apart) {
  std::vector<Outcome> record = {outcome("a", 1.25), outcome("b", 0.8), outcome("c", 1.25)};
  record[2].calibrated_step_s = 1.5;
  record[1].layout = "data 2", record[1].ranks = 2;
  const auto groups = errors_of(record);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].ranks, 1);
  EXPECT_EQ(groups[0].step.runs, 2);
  EXPECT_NEAR(groups[0].step.bias, -0.2, 1e-12);
  EXPECT_NEAR(groups[0].step.median, 0.2, 1e-12);
  EXPECT_EQ(groups[0].calibrated_step.runs, 1);
  EXPECT_NEAR(groups[0].calibrated_step.median, 0.2, 1e-12);
  EXPECT_NEAR(groups[0].calibrated_step.bias, 0.2, 1e-12);
  EXPECT_EQ(groups[1].ranks, 2);
  EXPECT_NEAR(groups[1].step.bias, 0.25, 1e-12);
  EXPECT_EQ(groups[1].calibrated_step.runs, 0);
}

class RecordFile : public testing::Test {
 protected:
  fs::path path = record_path(fs::path(testing::TempDir()) / "ingot_track_record" / "cache");
  void SetUp() override { fs::remove_all(path.parent_path()); }
  void TearDown() override { fs::remove_all(path.parent_path().parent_path()); }
};

TEST_F(RecordFile, keeps_every_member_and_passes_over_torn_lines) {
  EXPECT_TRUE(read_record(path).empty());
  Outcome full{"date", "run", "v", "machine", "family", "bf16", "data 2", "shape", 2, 7, 0.1, 0.2, 0.3, 4, 5, 6, 0.05};
  append_to_record(path, full);
  base::append_line(path, R"({"date":"torn)");
  base::append_line(path, R"({"date":1})");
  append_to_record(path, outcome("b", 1.3));
  int64_t unreadable = 0;
  const auto read = read_record(path, &unreadable);
  ASSERT_EQ(read.size(), 2u);
  EXPECT_EQ(unreadable, 2);
  EXPECT_EQ(to_json_line(read[0]), to_json_line(full));
  EXPECT_EQ(read[0].calibrated_memory_bytes, 5);
  EXPECT_EQ(read[1].shape, "b");
}

TEST(TrackRecord, an_impossible_line_is_refused) {
  const auto good = to_json_line(outcome("a", 1));
  EXPECT_NO_THROW(outcome_from_json(good, "file"));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{{"\"steps\":10", "\"steps\":-1"},
                                                                                 {"\"ranks\":1", "\"ranks\":0"},
                                                                                 {"\"steps\":10", "\"steps\":\"x\""},
                                                                                 {"\"steps\":10,", ""},
                                                                                 {"\"steps\":10", "\"steps\":10,\"more\":1"}}) {
    auto bad = good;
    bad.replace(bad.find(from), from.size(), to);
    EXPECT_THROW(outcome_from_json(bad, "file"), base::ProfileError) << bad;
  }
}

}  // namespace
}  // namespace ingot::plan
