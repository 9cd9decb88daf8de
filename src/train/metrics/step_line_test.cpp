#include "train/metrics/step_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "train/metrics/config.h"

namespace ingot::train {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StepRecord typical() {
  StepRecord record;
  record.step = 1200;
  record.steps = 20000;
  record.loss = 3.21456;
  record.grad_norm = 0.84219;
  record.lr = 2.95e-4;
  record.step_ms = 1234.4;
  record.predicted_step_ms = 1180;
  record.tokens_per_s = 12345;
  record.tflops = 0.1234;
  record.mfu = 0.452;
  record.memory_peak_bytes = (int64_t{1} << 30) * 5 / 4;
  record.predicted_memory_bytes = (int64_t{1} << 30) * 3 / 2;
  record.eta_s = 7380;
  return record;
}

TEST(StepLine, shows_what_a_person_looks_for_with_units) {
  EXPECT_EQ(step_line(typical()),
            "step  1200/20000   6%  loss  3.215  norm 0.8422  lr 2.95e-04   1234/1180 ms  12.3 k tok/s  0.1234 TFLOP/s  MFU 45.2%  mem "
            "1.250/1.500 GiB  "
            "left 2 h 03 min");
}

TEST(StepLine, columns_stay_in_place_while_numbers_change) {
  auto early = typical(), late = typical();
  early.step = 1;
  early.loss = 11.0921;
  early.grad_norm = 143.7;
  early.step_ms = 981.2;
  early.tokens_per_s = 7.2;
  late.step = 20000;
  const auto a = step_line(early), b = step_line(late);
  for (const char* label : {"  loss", "  norm", "  lr", "/1180 ms", " tok/s", "  MFU", "  mem", "  left"})
    EXPECT_EQ(a.find(label), b.find(label)) << a << "\n" << b;
}

TEST(StepLine, fits_180_columns_with_everything_in_it) {
  auto record = typical();
  record.steps = record.step = 1000000;
  record.expert_load = ExpertLoad{.max = 4096, .mean = 256};
  record.validation_loss = 3.30127;
  record.loss = std::numeric_limits<double>::quiet_NaN();
  record.grad_norm = std::numeric_limits<double>::infinity();
  record.eta_s = 86400 * 30 + 3600 * 5;
  record.memory_peak_bytes = record.predicted_memory_bytes = int64_t{180} << 30;
  const auto line = step_line(record);
  EXPECT_LE(line.size(), 180u) << line;
  for (const char* part : {"loss    nan", "norm    inf", "imb 16.0x", "left 30 d 05 h", "val 3.301"}) EXPECT_THAT(line, HasSubstr(part));
  record.validation_loss.reset();
  record.skipped = true;
  EXPECT_LE(step_line(record).size(), 180u);
  EXPECT_THAT(step_line(record), HasSubstr("SKIPPED"));
}

TEST(StepLine, leaves_out_what_the_run_does_not_have) {
  auto record = typical();
  record.predicted_step_ms = record.mfu = 0;
  record.predicted_memory_bytes = 0;
  record.memory_peak_bytes = 300 << 20;
  const auto line = step_line(record);
  EXPECT_THAT(line, HasSubstr("  1234 ms"));
  EXPECT_THAT(line, Not(HasSubstr("MFU")));
  EXPECT_THAT(line, HasSubstr("mem 300.0 MiB"));
}

TEST(StepLine, evaluations_have_lines_of_their_own) {
  EXPECT_EQ(evaluation_line(1200, {"agreement", 40, {{"acc", 0.725, 0.0714, true}, {"loss", 2.5, std::nullopt, false}}}),
            "step 1200  agreement (40 items): acc 0.7250 ± 0.07140, loss 2.500");
}

TEST(StepLine, mfu_convention_names_the_peak_and_what_is_counted) {
  const auto text = mfu_convention(0.205, "fp32 GEMM measured on this machine");
  for (const char* part :
       {"0.2050 TFLOP/s", "measured on this machine", "causal attention counted once", "active experts only", "recompute not counted"})
    EXPECT_THAT(text, HasSubstr(part));
  EXPECT_THAT(mfu_convention(0, ""), HasSubstr("ingot bench gemm"));
}

TEST(LogConfig, settings_are_declared_and_checked) {
  LogConfig config;
  base::SettingsTable table;
  declare_settings(table, config);
  table.load_toml("[log]\nevery = 10\ntensorboard = false\nprometheus = \"127.0.0.1:9400\"\nlevel = \"debug\"\n", "test");
  EXPECT_EQ(config.every, 10);
  EXPECT_FALSE(config.tensorboard);
  check(config);
  EXPECT_THROW(table.set("log.every", "0", "test"), base::ConfigError);
  EXPECT_THROW(table.set("log.level", "loud", "test"), base::ConfigError);
  config.prometheus = "9400";
  EXPECT_THROW(check(config), base::ConfigError);
}

}  // namespace
}  // namespace ingot::train
