// Documents about plans: that they hold what was asked for, and say what hinders.
#include <gmock/gmock.h>

#include <cmath>

#include "plan/report/errors.h"
#include "plan/report/expert_width.h"
#include "plan/report/run.h"
#include "plan/report/simulation.h"
#include "plan/report/size.h"
#include "plan/report/time.h"
#include "plan/test_support.h"

namespace ingot::plan {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kCluster = "configs/clusters/h100-64.json";

Planner planner_of(int64_t pipeline = 1, double memory_gb = 0, int64_t devices = 8) {
  train::RunConfig config;
  config.model = small_model("llama");
  config.model.layers = 4;
  config.data.seq_len = 64;
  config.data.sources = {{"nothing/here", 1}};
  config.train.steps = 10;
  config.train.batch_size = 16;
  config.train.precision = "bf16";
  config.train.microbatch_size = 1;
  config.parallel.pipeline = pipeline;
  config.checkpoint.every = 5;
  return Planner(config, target_of(cluster_with(kCluster, devices, memory_gb), devices, "bf16"));
}

TEST(MemoryDocument, has_a_line_for_each_stage_and_says_what_does_not_fit) {
  auto planner = planner_of(2);
  const auto document = memory_of(planner, 8, 1.2);
  EXPECT_EQ(document.json["stages"].size(), 2u);
  EXPECT_TRUE(document.fits);
  EXPECT_EQ(document.json["fits"], true);
  EXPECT_EQ(document.json["devices"], 8);
  auto tight = planner_of(2, 0.5);
  const auto refused = memory_of(tight, 8, 1.2);
  EXPECT_FALSE(refused.fits);
  EXPECT_THAT(refused.text, HasSubstr("ingot plan search finds what does"));
}

TEST(SearchDocument, lists_the_fastest_first_and_less_memory_for_more_time) {
  std::vector<Planner> planners;
  planners.push_back(planner_of());
  std::vector<SearchResult> results = {planners[0].search(8, int64_t{80} << 30, {})};
  const auto document = search_of(planners, results, 3);
  EXPECT_TRUE(document.fits);
  ASSERT_EQ(document.json["layouts"].size(), 3u);
  EXPECT_LE(document.json["layouts"][0]["step_ms"]["total"], document.json["layouts"][1]["step_ms"]["total"]);
  EXPECT_EQ(document.json["pareto"][0]["layout"], document.json["layouts"][0]["layout"]);
  EXPECT_THAT(document.text, HasSubstr(document.json["toml"].get<std::string>()));
}

TEST(SearchDocument, where_nothing_fits_the_least_is_named) {
  std::vector<Planner> planners;
  planners.push_back(planner_of());
  std::vector<SearchResult> results = {planners[0].search(8, 1000, {})};
  const auto document = search_of(planners, results, 3);
  EXPECT_FALSE(document.fits);
  EXPECT_THAT(document.text, HasSubstr("nothing fits"));
  EXPECT_TRUE(document.json["layouts"].empty());
}

TEST(TimeDocument, the_run_is_its_steps_and_what_failures_cost) {
  auto planner = planner_of();
  const auto document = time_of(planner, 8, {}, {});
  const double step_ms = document.json["step_ms"]["total"];
  EXPECT_GT(step_ms, 0);
  EXPECT_NEAR(document.json["run"]["steps_s"], 10 * step_ms / 1e3, 1e-9);
  EXPECT_EQ(document.json["run"]["failures_s"], 0);
  EXPECT_THAT(document.text, AllOf(HasSubstr("the run of 10 steps"), HasSubstr("copying and storage of a cluster count as free")));
  EXPECT_FALSE(document.json.contains("calibrated")) << "of another machine";
}

TEST(SimulationDocument, undisturbed_it_is_the_formulas_step) {
  auto planner = planner_of(2);
  const auto document = simulation_of({.recovery = {.reliability = {.device_mtbf_h = 0}}}, planner, 8);
  EXPECT_EQ(document.json["complete"], true);
  EXPECT_NEAR(document.json["undisturbed_ms"].get<double>() / document.json["predicted_ms"].get<double>(), 1, 0.1);
  EXPECT_DOUBLE_EQ(document.json["step_ms"]["mean"], document.json["undisturbed_ms"]);
  EXPECT_EQ(document.json["stages"].size(), 2u);
  EXPECT_FALSE(document.json.contains("run"));
}

TEST(SimulationDocument, a_dead_rank_is_said_to_halt_the_step) {
  auto planner = planner_of(2);
  SimulationRequest request{.recovery = {.reliability = {.device_mtbf_h = 1000, .devices = 8, .restart_s = 60, .save_stall_s = 1}},
                            .spares = 1};
  request.disturbances.failures.push_back({0, 0});
  const auto document = simulation_of(request, planner, 8);
  EXPECT_EQ(document.json["complete"], false);
  EXPECT_THAT(document.text, AllOf(HasSubstr("the step does not end"), HasSubstr("goodput")));
  EXPECT_DOUBLE_EQ(document.json["run"]["expected_goodput"], document.json["run"]["best_expected_goodput"]);
  ASSERT_EQ(document.json["recovery"].size(), recovery_policies(1).size());
  EXPECT_GT(document.json["recovery"].back()["goodput"], document.json["recovery"].front()["goodput"]) << "all together beats the plainest";
}

TEST(ErrorsDocument, groups_have_rows_and_none_has_a_next_step) {
  const auto empty = errors_document("record.jsonl", {}, 0);
  EXPECT_THAT(empty.text, HasSubstr("ingot train adds one line"));
  GroupErrors group{.family = "llama", .precision = "fp32", .ranks = 2, .machine = "here", .step = {3, 0.04, 0.1, -0.02}};
  const auto document = errors_document("record.jsonl", {group}, 7);
  EXPECT_EQ(document.json["unreadable_lines"], 7);
  EXPECT_EQ(document.json["groups"][0]["step"]["runs"], 3);
  EXPECT_TRUE(document.json["groups"][0]["memory"].is_null());
  EXPECT_THAT(document.text, AllOf(HasSubstr("4.0 %"), HasSubstr("-2.0 %")));
}

TEST(SizeDocument, has_the_rules_with_their_numbers_and_marks_the_choice) {
  const auto device = device_of(round_machine(1e12, 5e10), "bf16", int64_t{16'000'000'000}, 1 << 20);
  DataParallel devices(device);
  const auto sizing = size_model({.parameters = 3e7, .seq = 256}, devices, {});
  const auto document = document_of(sizing, {device, "made up", false});
  EXPECT_TRUE(document.fits);
  EXPECT_EQ(document.json["rules"].size(), sizing.rules.size());
  EXPECT_EQ(document.json["toml"], sizing.toml);
  EXPECT_THAT(document.text, AllOf(HasSubstr("<- chosen"), HasSubstr("made up"), HasSubstr(sizing.toml)));
}

TEST(ExpertDocument, says_where_the_configuration_lies) {
  ExpertSweep sweep;
  sweep.base = small_model("zaya1");
  sweep.base.hidden = 128, sweep.base.heads = 4, sweep.base.kv_heads = 2, sweep.base.top_k = 1;
  sweep.experts = {2, 4};
  sweep.top_k = {1};
  sweep.multiple = 16;
  sweep.job = {.batch = 8, .seq = 64};
  sweep.context = sweep.prompt = 64;
  const auto device = device_of(round_machine(1e12, 5e10), "bf16", int64_t{16'000'000'000}, 1 << 20);
  DataParallel devices(device);
  const auto choices = sweep_experts(sweep, devices);
  const auto document = document_of(sweep, {device, "made up", false}, choices);
  EXPECT_TRUE(document.fits);
  EXPECT_EQ(document.json["choices"].size(), choices.size());
  EXPECT_EQ(document.cells.size(), choices.size());
  EXPECT_EQ(document.cells[0].size(), document.columns.size());
  EXPECT_EQ(document.json["configuration"].size(), 4u) << "decode and prefill, with and without parameters";
  EXPECT_THAT(document.text, AllOf(HasSubstr("<- the configuration"), HasSubstr(kExpertCaution)));
}

}  // namespace
}  // namespace ingot::plan
