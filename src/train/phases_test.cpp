#include "train/phases.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace ingot::train {
namespace {

using ::testing::HasSubstr;

RunConfig two_phases() {
  RunConfig config;
  config.data.seq_len = 100;
  config.data.sources = {{"a", 1}};
  config.train.batch_size = 4;
  config.train.phases = {
      {.name = "short", .steps = 3},
      {.name = "long", .tokens = 1001, .seq_len = 250, .batch_size = 2, .rope_base = 5e5, .lr = 0.5, .sources = {"0.25 data/b c", "1 d"}}};
  return config;
}

TEST(Phases, without_any_the_whole_run_is_one) {
  RunConfig config;
  config.train.steps = 7;
  const auto phases = lay_out_phases(config);
  ASSERT_EQ(phases.size(), 1u);
  EXPECT_EQ(total_steps(phases), 7);
  EXPECT_EQ(phases[0].peak_lr, config.optimizer.lr);
}

TEST(Phases, follow_one_another_and_round_tokens_up_to_steps) {
  const auto phases = lay_out_phases(two_phases());
  EXPECT_EQ(phases[1].first_step, 3);
  EXPECT_EQ(phases[1].steps, 3);  // 1001 tokens in steps of 500
  EXPECT_EQ(total_steps(phases), 6);
  EXPECT_EQ(&phase_at(phases, 2), &phases[0]);
  EXPECT_EQ(&phase_at(phases, 3), &phases[1]);
  EXPECT_EQ(&phase_at(phases, 6), &phases[1]);
}

TEST(Phases, override_what_they_name_and_inherit_the_rest) {
  const auto config = two_phases();
  const auto phases = lay_out_phases(config);
  EXPECT_EQ(phases[0].rope_base, config.model.rope_base);
  EXPECT_EQ(phases[1].rope_base, 5e5);
  EXPECT_EQ(phases[1].peak_lr, 0.5);
  EXPECT_EQ(phases[1].data.seq_len, 250);
  ASSERT_EQ(phases[1].data.sources.size(), 2u);
  EXPECT_EQ(phases[1].data.sources[0].path, "data/b c");
  EXPECT_EQ(phases[1].data.sources[0].weight, 0.25);
  EXPECT_NE(phases[0].data.seed, phases[1].data.seed) << "the second phase would see the same samples in the same order";
}

TEST(Phases, a_source_without_a_weight_is_refused_with_an_example) {
  for (const std::string source : {"data/web", "x data/web", "0 data/web", "-1 data/web", ""}) {
    auto config = two_phases();
    config.train.phases[0].sources = {source};
    try {
      lay_out_phases(config);
      ADD_FAILURE() << source << " was taken";
    } catch (const base::ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr("0.7 data/web"));
    }
  }
}

}  // namespace
}  // namespace ingot::train
