#include "resilience/bisection.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::resilience {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

Round round_of(std::vector<int64_t> ranks) {
  Round round;
  for (const auto n : ranks)
    round.nodes.push_back({.id = 0, .ranks = n, .host = "host" + std::to_string(round.nodes.size()), .address = ""});
  return round;
}

// What the trials of a job whose rank 1 failed came to.
Verdict verdict_of(const Round& round, TrialOutcome again, TrialOutcome rotated, TrialOutcome wide) {
  again.name = "again", rotated.name = "rotated", wide.name = "fp32";
  rotated.rotation = trials(round)[1].rotation;
  return verdict(round, 1, {again, rotated, wide});
}

const TrialOutcome passed{.passed = true}, fails{.rank = 1}, as_rank_0{.rank = 0}, as_rank_3{.rank = 3}, many_fail{};

TEST(Bisection, says_what_a_failure_of_one_node_hangs_on) {
  const auto node = round_of({2});
  EXPECT_THAT(verdict_of(node, fails, fails, fails).what, HasSubstr("what rank 1 has to do"));
  EXPECT_EQ(verdict_of(node, fails, fails, fails).advice, Advice::give_up);
  const auto of_place = verdict_of(node, fails, as_rank_0, fails);
  EXPECT_THAT(of_place.what, AllOf(HasSubstr("rank 1 failed, and rank 0 when it ran in its place"), HasSubstr("this node is left out")));
  EXPECT_EQ(of_place.advice, Advice::leave_out_node);
  EXPECT_THAT(verdict_of(node, fails, passed, fails).what, HasSubstr("passed when each rank ran in another process"));
  EXPECT_EQ(verdict_of(node, fails, passed, fails).advice, Advice::give_up);
  EXPECT_THAT(verdict_of(node, fails, fails, passed).what, HasSubstr("passes in fp32"));
  EXPECT_THAT(verdict_of(node, passed, fails, fails).what, HasSubstr("only repeated"));
  EXPECT_EQ(verdict_of(node, passed, fails, fails).advice, Advice::go_on);
  EXPECT_THAT(verdict_of(node, many_fail, many_fail, many_fail).what, HasSubstr("in each of these ways"));
  EXPECT_THAT(verdict(round_of({1}), 0, {{.name = "again", .rank = 0}, {.name = "fp32", .rank = 0}}).what,
              HasSubstr("in each of these ways"));
  EXPECT_THAT(verdict(node, -1, {}).what, HasSubstr("in each of these ways"));
}

TEST(Bisection, leaves_out_the_node_that_a_failure_goes_with) {
  const auto nodes = round_of({2, 2, 2});  // rank 1 is on the first; rotated, that one works on ranks 2 and 3
  const auto of_node = verdict_of(nodes, fails, as_rank_3, fails);
  EXPECT_EQ(of_node.advice, Advice::leave_out_node);
  EXPECT_EQ(of_node.node, 0);
  EXPECT_THAT(of_node.what, AllOf(HasSubstr("goes with the node"), HasSubstr("node 0 (host0) is left out")));
  EXPECT_EQ(verdict_of(nodes, fails, as_rank_0, fails).advice, Advice::give_up) << "rank 0 was then on the last one";
  EXPECT_THAT(verdict_of(nodes, fails, fails, fails).what, HasSubstr("what rank 1 has to do"));
  EXPECT_THAT(verdict_of(nodes, fails, passed, fails).what, HasSubstr("on another node"));
}

TEST(Bisection, leaves_out_the_node_whose_replica_stands_alone) {
  const auto found = verdict_of(round_of({1, 1, 1}), {.rank = 2, .replicas_differ = true}, fails, passed);
  EXPECT_THAT(found.what, AllOf(HasSubstr("rank 2 from most: its machine computes wrongly"), HasSubstr("node 2 (host2) is left out")));
  EXPECT_EQ(found.node, 2);
  const auto undecided = verdict_of(round_of({1, 1}), {.rank = -1, .replicas_differ = true}, fails, passed);
  EXPECT_EQ(undecided.advice, Advice::give_up);
  EXPECT_THAT(undecided.what, HasSubstr("no side has a majority"));
  EXPECT_EQ(verdict_of(round_of({1, 1}), {.rank = 7, .replicas_differ = true}, fails, passed).advice, Advice::give_up) << "no such rank";
}

TEST(Bisection, combines_what_the_nodes_say) {
  const Trial trial{.name = "rotated", .what = "", .flags = {}, .rotation = 2};
  const NodeOutcome well{.passed = true}, one{.failed = 1, .rank = 3}, ended{};
  EXPECT_TRUE(combine(trial, {well, well}).passed);
  EXPECT_FALSE(combine(trial, {well, ended}).passed);
  EXPECT_EQ(combine(trial, {ended, one, ended}).rank, 3);
  EXPECT_EQ(combine(trial, {ended, one, ended}).rotation, 2);
  EXPECT_EQ(combine(trial, {{.failed = 1, .rank = 0}, one}).rank, -1) << "several alike";
  NodeOutcome differing{.failed = 1, .rank = 0};
  read_replicas({"step 3: ranks that hold the same weights differ, first in a (…). Most agree; against them stands rank 12 on b: judge it"},
                differing);
  EXPECT_TRUE(differing.replicas_differ);
  EXPECT_EQ(combine(trial, {ended, differing}).rank, 12);
  NodeOutcome undecided;
  read_replicas({"ranks that hold the same weights differ. No side has a majority", "last words"}, undecided);
  EXPECT_TRUE(combine(trial, {undecided, one}).replicas_differ);
  EXPECT_EQ(combine(trial, {undecided, one}).rank, -1);
}

TEST(Bisection, tries_one_change_at_a_time) {
  EXPECT_EQ(trials(round_of({1})).size(), 2);
  EXPECT_EQ(trials(round_of({4}))[1].rotation, 1);
  EXPECT_EQ(trials(round_of({4, 4}))[1].rotation, 4);
  const auto all = trials(round_of({1, 1}));
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
