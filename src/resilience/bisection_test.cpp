#include "resilience/bisection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::resilience {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// What the trials of a job of two ranks, whose rank 1 failed, came to.
std::string verdict_of(TrialOutcome again, TrialOutcome rotated, TrialOutcome wide) {
  again.name = "again", rotated.name = "rotated", wide.name = "fp32";
  return verdict(1, {again, rotated, wide});
}

TEST(Bisection, says_what_a_failure_hangs_on) {
  const TrialOutcome passed{.passed = true}, fails{.rank = 1}, elsewhere{.rank = 0};
  EXPECT_THAT(verdict_of(fails, fails, fails), HasSubstr("what rank 1 has to do"));
  EXPECT_THAT(verdict_of(fails, elsewhere, fails), HasSubstr("rank 1 failed, and rank 0 when it ran in another process"));
  EXPECT_THAT(verdict_of(fails, passed, fails), HasSubstr("passed when each rank ran in another process"));
  EXPECT_THAT(verdict_of(fails, fails, passed), HasSubstr("passes in fp32"));
  EXPECT_THAT(verdict_of(passed, fails, fails), HasSubstr("only repeated"));
  EXPECT_THAT(verdict_of({.rank = 1, .replicas_differ = true}, fails, passed), HasSubstr("rank 1 first: its machine computes wrongly"));
  EXPECT_THAT(verdict(0, {{.name = "again", .rank = 0}, {.name = "fp32", .rank = 0}}), HasSubstr("in each of these ways")) << "of one rank";
  EXPECT_THAT(verdict(-1, {}), HasSubstr("in each of these ways"));
}

TEST(Bisection, tries_one_change_at_a_time) {
  EXPECT_EQ(trials(1).size(), 2);
  const auto all = trials(4);
  ASSERT_EQ(all.size(), 3);
  for (const auto& trial : all) EXPECT_LE((trial.rotation > 0 ? 1 : 0) + static_cast<int>(trial.flags.size() / 2), 1) << trial.name;
}

TEST(Bisection, calls_the_same_program_with_other_flags) {
  EXPECT_THAT(
      command_of_trial({"ingot", "train", "--run-dir=runs/x", "m.toml", "--resume", "never", "--set", "a=1", "--stop-after", "9"},
                       {"--run-dir", "t", "--resume", "c", "--set", "b=2"}),
      ElementsAre("ingot", "train", "m.toml", "--set", "a=1", "--stop-after", "9", "--run-dir", "t", "--resume", "c", "--set", "b=2"));
}

TEST(Bisection, starts_from_the_newest_checkpoint_before_the_step) {
  const auto from = [](const std::string& checkpoints) { return flags_of_trials(8, "/trials", checkpoints)[4]; };
  EXPECT_EQ(from(""), "never");
  const std::string lines =
      "{\"kind\":\"save\",\"where\":\"folder\",\"step\":3,\"path\":\"/c/3\",\"ok\":true}\n"
      "{\"kind\":\"save\",\"where\":\"folder\",\"step\":6,\"path\":\"/c/6\",\"ok\":true}\n"
      "{\"kind\":\"save\",\"where\":\"memory\",\"step\":7,\"path\":\"/m/7\",\"ok\":true}\n"
      "{\"kind\":\"save\",\"where\":\"folder\",\"step\":7,\"path\":\"/c/7\",\"ok\":false}\n"
      "{\"kind\":\"load\",\"where\":\"folder\",\"step\":5,\"path\":\"/c/5\",\"ok\":true}\n"
      "{\"kind\":\"save\",\"where\":\"folder\",\"step\":8,\"path\":\"/c/8\",\"ok\":true}\n";
  EXPECT_EQ(from(lines), "/c/6");
  EXPECT_EQ(from("[1]\nnull\n{\"kind\":3\n\xff\n" + lines + "{\"kind\":\"sa"), "/c/6") << "a line that is torn, or none";
}

}  // namespace
}  // namespace ingot::resilience
