// Runs as they are planned: the ranks and devices of a configuration, the forecast against the plan that it is made from, and the record.
#include <gmock/gmock.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "device/device.h"
#include "plan/describe.h"
#include "plan/run/forecast.h"
#include "plan/run/out_of_memory.h"
#include "plan/run/planner.h"
#include "plan/run/ranks.h"
#include "plan/run/sizing_device.h"
#include "plan/test_support.h"

namespace ingot::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kCluster = "configs/clusters/h100-64.json";

train::RunConfig small_run(const std::string& family = "llama") {
  train::RunConfig config;
  config.model = small_model(family);
  config.data.seq_len = 64;
  config.data.sources = {{"nothing/here", 1}};
  config.train.steps = 10;
  config.train.batch_size = 8;
  config.train.microbatch_size = 2;
  config.checkpoint.every = 5;
  return config;
}

template <class Error, class Call>
std::string refusal(const Call& call) {
  try {
    call();
  } catch (const Error& refused) {
    return refused.what();
  }
  return "";
}

TEST(ConfiguredRanks, are_the_product_of_the_axes) {
  EXPECT_EQ(configured_ranks({}), 1);
  EXPECT_EQ(configured_ranks({.pipeline = 2, .data = 3, .context = 2, .tensor = 4}), 48);
  EXPECT_EQ(configured_ranks({.data = -1, .tensor_sequence = 4}), 4);
}

TEST(DescribeRanks, says_what_a_rank_holds_at_each_level_of_zero) {
  auto config = small_run();
  config.parallel.tensor = 2;
  const mesh::Mesh mesh(config.parallel, 0, 8);
  const auto text = [&](int64_t zero) {
    config.parallel.zero = zero;
    return describe_ranks(config, mesh);
  };
  EXPECT_THAT(text(0), AllOf(HasSubstr("1/2 of each matrix; of that all weights, gradients and moments"),
                             HasSubstr("trains on 2 of the 8 sequences")));
  EXPECT_THAT(text(1), HasSubstr("all weights and gradients, 1/4 of masters and moments"));
  EXPECT_THAT(text(2), HasSubstr("all weights, 1/4 of gradients"));
  EXPECT_THAT(text(3), HasSubstr("1/4 of weights"));
  config.parallel.pipeline = 2;
  EXPECT_THAT(describe_ranks(config, mesh::Mesh(config.parallel, 0, 8)),
              AllOf(HasSubstr("behind the embedding"), HasSubstr("before the head")));
}

TEST(ClusterWith, takes_more_nodes_and_other_memory) {
  const auto given = schedule::read_cluster(kCluster);
  EXPECT_EQ(cluster_with(kCluster, 0, 0).devices(), given.devices());
  const auto wider = cluster_with(kCluster, 16 * given.devices_per_node, 40);
  EXPECT_EQ(wider.nodes, 16);
  EXPECT_EQ(wider.memory_bytes, 40e9);
  EXPECT_THAT(refusal<base::UsageError>([&] { cluster_with(kCluster, given.devices_per_node + 1, 0); }), HasSubstr("say a multiple"));
}

TEST(Planner, configured_layout_takes_the_devices_that_are_left) {
  auto config = small_run();
  config.train.precision = "bf16";
  config.parallel.tensor = 2;
  config.train.microbatch_size = 0;
  Planner planner(config, target_of(schedule::read_cluster(kCluster), 8, "bf16"));
  const auto choice = planner.configured(8);
  EXPECT_EQ(choice.parallel.data, 4);
  EXPECT_EQ(choice.microbatch, 2);
  planner.check(choice);
  const auto memory = planner.memory(choice);
  EXPECT_GT(memory.total_bytes(), planner.least_bytes(choice));
  const auto judged = planner.judge(choice, memory);
  EXPECT_GT(judged.step_s(), 0);
  EXPECT_NEAR(planner.mfu(judged), planner.flops_per_token() * 8 * 64 / (judged.step_s() * planner.peak_flops() * 8), 1e-12);
}

TEST(Planner, a_layout_that_does_not_divide_the_model_is_refused_with_the_reason) {
  auto config = small_run();
  config.train.precision = "bf16";
  Planner planner(config, target_of(schedule::read_cluster(kCluster), 8, "bf16"));
  auto choice = planner.configured(8);
  choice.parallel = {.data = 1, .tensor = 8};  // of 4 heads
  EXPECT_FALSE(planner.is_possible(choice));
  EXPECT_NE(refusal<base::ConfigError>([&] { planner.check(choice); }), "");
}

TEST(Forecast, is_the_plan_of_every_phase_and_the_largest_memory) {
  auto config = small_run();
  config.train.phases = {{.name = "short", .steps = 4}, {.name = "long", .steps = 6, .seq_len = 128}};
  config.train.steps = 0;
  const mesh::Mesh mesh(config.parallel, 0, 1);
  const auto forecast = forecast_of(config, mesh, round_machine(1e11, 1e10), 1 << 20);
  ASSERT_EQ(forecast.phases.size(), 2u);
  ASSERT_EQ(forecast.numbers.step_ms.size(), 2u);
  EXPECT_GT(forecast.numbers.step_ms[1], forecast.numbers.step_ms[0]) << "twice the tokens";
  EXPECT_EQ(forecast.numbers.gemm_flops, 1e11);
  EXPECT_GT(forecast.numbers.memory_bytes, 1 << 20);
  const auto json = nlohmann::json::parse(dry_run(config, mesh, round_machine(1e11, 1e10), 1 << 20, true));
  ASSERT_EQ(json["phases"].size(), 2u);
  EXPECT_EQ(json["phases"][0]["phase"], "short");
  EXPECT_THAT(dry_run(config, mesh, round_machine(1e11, 1e10), 1 << 20, false), HasSubstr("phase 'long'"));
}

// The forecast was of the first stage alone, as if the last had no head.
TEST(Forecast, of_a_pipeline_is_of_its_slowest_stage) {
  auto config = small_run();
  config.parallel.pipeline = 2;
  config.model.vocab_size = 4096;
  const auto step_ms = [&](int rank) {
    return forecast_of(config, mesh::Mesh(config.parallel, rank, 2), round_machine(1e11, 1e10), 0).numbers.step_ms[0];
  };
  EXPECT_EQ(step_ms(0), step_ms(1)) << "whoever asks";
  const double with_head = step_ms(0);
  config.model.vocab_size = 64;
  EXPECT_GT(with_head, 1.2 * step_ms(0));
}

TEST(Forecast, of_an_unknown_machine_has_memory_but_no_time) {
  const auto config = small_run();
  const auto forecast = forecast_of(config, mesh::Mesh(config.parallel, 0, 1), {}, 0);
  EXPECT_EQ(forecast.numbers.step_ms, std::vector<double>{0});
  EXPECT_GT(forecast.numbers.memory_bytes, 0);
}

TEST(OutOfMemory, is_explained_by_who_holds_what_and_what_would_need_less) {
  auto config = small_run();
  config.train.microbatch_size = 8;
  const mesh::Mesh mesh(config.parallel, 0, 1);
  const auto profile = round_machine(1e11, 1e10);
  const auto memory_of = [&](int64_t microbatch, const std::string& recompute, int64_t program_bytes) {
    auto changed = config;
    changed.train.microbatch_size = microbatch, changed.train.recompute = recompute;
    return forecast_of(changed, mesh, profile, program_bytes).numbers.memory_bytes;
  };
  const int64_t there = device::memory_bytes(at::kCPU);
  const int64_t program_bytes = there - (memory_of(8, "none", 0) + memory_of(1, "full", 0)) / 2;
  const auto explained = [&](int64_t program_bytes) {
    PhasePlanner planner(config, mesh, profile, program_bytes);
    return explain_out_of_memory(config, planner);
  };
  const auto text = explained(program_bytes);
  for (const char* name : {"weights", "gradients", "optimizer", "layer/", "what would need less", "a step +"})
    EXPECT_THAT(text, HasSubstr(name));
  int microbatch = 0;
  char recompute[16] = "";
  const auto at = text.find("train.microbatch_size = ");
  ASSERT_NE(at, std::string::npos) << text;
  ASSERT_EQ(std::sscanf(text.c_str() + at, "train.microbatch_size = %d, train.recompute = \"%15[a-z]", &microbatch, recompute), 2) << text;
  EXPECT_LE(memory_of(microbatch, recompute, program_bytes), there) << text;
  EXPECT_THAT(dry_run(config, mesh, profile, program_bytes, false), HasSubstr("what would need less"));
  // States alone are too much; and a plan that was wrong.
  EXPECT_THAT(explained(there), AllOf(HasSubstr("does not fit either"), HasSubstr("parallel.zero")));
  EXPECT_THAT(explained(0), AllOf(HasSubstr("it should fit"), HasSubstr("what would need less")));
}

TEST(Record, identity_tells_apart_what_decides_time_and_memory) {
  const auto config = small_run();
  const mesh::Mesh mesh(config.parallel, 0, 1);
  const auto model = models::create_model(config.model);
  const auto profile = round_machine(1e11, 1e10);
  RunShape shape{.batch = 8, .microbatch = 2, .seq = 64};
  const auto one = identity_of(config, mesh, *model, shape, profile);
  shape.recompute = models::Recompute::full;
  const auto other = identity_of(config, mesh, *model, shape, profile);
  EXPECT_TRUE(one.is_kin(other));
  EXPECT_FALSE(one.is_same_run(other));
  EXPECT_THAT(other.shape, HasSubstr("recompute full"));
}

TEST(Record, calibration_multiplies_by_the_median_of_kin) {
  Outcome run{.version = "v", .machine = "m", .family = "llama", .precision = "fp32", .layout = "1", .shape = "this"};
  std::vector<Outcome> record;
  for (const double quotient : {1.1, 1.2, 1.3}) {
    auto earlier = run;
    earlier.shape = fmt::format("{}", quotient);
    earlier.predicted_step_s = 1;
    earlier.measured_step_s = quotient;
    record.push_back(earlier);
  }
  const auto calibration = calibrate(run, 2, 1000, record);
  EXPECT_EQ(calibration.step.runs, 3);
  EXPECT_DOUBLE_EQ(run.calibrated_step_s, 2 * 1.2);
  EXPECT_EQ(run.predicted_memory_bytes, 1000);
  EXPECT_EQ(run.calibrated_memory_bytes, 0) << "nobody measured memory";
}

TEST(Record, outcomes_of_a_run_are_left_in_its_folder) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("ingot_record_{}", ::getpid());
  std::filesystem::create_directories(folder);
  RunForecast forecast;
  forecast.phases = {{.phase = "one", .outcome = {.version = "test", .machine = "record_test"}, .calibration = {}},
                     {.phase = "two", .outcome = {.version = "test", .machine = "record_test"}, .calibration = {}}};
  train::Measured measured;
  measured.step_ms = {{10, 12, 30}, {1, 2}};  // too few of the second
  measured.peak_memory_bytes = 5000;
  keep_outcomes(forecast, measured, 0.2, folder);
  const auto kept = nlohmann::json::parse(base::read_file(folder / "predictions.json"))["phases"];
  std::filesystem::remove_all(folder);
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0]["phase"], "one");
  EXPECT_DOUBLE_EQ(kept[0]["measured_step_s"].get<double>(), 0.012);
  EXPECT_EQ(kept[0]["measured_memory_bytes"], 5000);
}

TEST(SizingDevice, of_a_cluster_says_that_nothing_was_measured) {
  const auto chosen = sizing_device({.cluster = kCluster, .devices = 8, .memory_gb = 40});
  EXPECT_EQ(chosen.device.count, 8);
  EXPECT_EQ(chosen.device.dtype, "bf16");
  EXPECT_EQ(chosen.device.memory_bytes, int64_t{40'000'000'000});
  EXPECT_FALSE(chosen.is_here);
  EXPECT_THAT(describe(chosen), HasSubstr("no shape was measured on it"));
}

TEST(SizingDevice, of_another_machine_asks_for_its_memory) {
  const auto file = std::filesystem::temp_directory_path() / fmt::format("ingot_sizing_{}.json", ::getpid());
  write_profile(file, round_machine(1e11, 1e10));
  EXPECT_THAT(refusal<base::UsageError>([&] { sizing_device({.profile = file.string()}); }), HasSubstr("--memory-gb"));
  const auto chosen = sizing_device({.profile = file.string(), .memory_gb = 16});
  std::filesystem::remove(file);
  EXPECT_TRUE(chosen.device.is_measured());
  EXPECT_THAT(chosen.source, HasSubstr("measured 2026-01-01"));
  EXPECT_THAT(refusal<base::UsageError>([] { sizing_device({.devices = 2}); }), HasSubstr("--cluster"));
}

}  // namespace
}  // namespace ingot::plan
