#include "resilience/choose_nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ingot::resilience {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Candidate ready(int64_t id) { return {.id = id, .node_rank = -1, .was_there = false, .is_ready = true}; }
Candidate back(int64_t id, bool is_ready = true) { return {.id = id, .node_rank = -1, .was_there = true, .is_ready = is_ready}; }

TEST(ChooseNodes, as_many_as_are_wanted_begin_at_once) {
  EXPECT_THAT(choose_nodes({ready(2), ready(0), ready(1)}, {.least = 1, .wanted = 3, .patience_s = 30}, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(choose_nodes({ready(0), ready(1), ready(2)}, {.least = 1, .wanted = 2}, 0), ElementsAre(0, 1)) << "the third is a spare";
}

TEST(ChooseNodes, fewer_wait_for_more_but_not_for_ever) {
  const RoundLimits limits{.least = 2, .wanted = 4, .patience_s = 30};
  EXPECT_THAT(choose_nodes({ready(0), ready(1)}, limits, 29), IsEmpty());
  EXPECT_THAT(choose_nodes({ready(0), ready(1)}, limits, 30), ElementsAre(0, 1));
  EXPECT_THAT(choose_nodes({ready(0)}, limits, 1e9), IsEmpty()) << "fewer than the least never begin";
}

TEST(ChooseNodes, nodes_that_still_end_their_ranks_are_waited_for_unless_spares_fill_their_places) {
  const RoundLimits limits{.least = 1, .wanted = 3};
  EXPECT_THAT(choose_nodes({back(0), back(1, false), back(2)}, limits, 100), IsEmpty());
  EXPECT_THAT(choose_nodes({back(0), back(1, false), back(2), ready(3)}, limits, 0), ElementsAre(0, 2, 3));
}

TEST(ChooseNodes, who_was_there_comes_first_and_a_given_place_before_that) {
  EXPECT_THAT(choose_nodes({ready(0), back(1), back(2)}, {.least = 1, .wanted = 2}, 0), ElementsAre(1, 2));
  auto first = ready(7), second = back(3);
  first.node_rank = 0, second.node_rank = 1;
  EXPECT_THAT(choose_nodes({second, first}, {.least = 2, .wanted = 2}, 0), ElementsAre(7, 3));
}

TEST(ChooseNodes, sizes_that_the_job_refused_are_left_out) {
  const RoundLimits limits{.least = 1, .wanted = 4, .refused = {3}};
  EXPECT_THAT(choose_nodes({ready(0), ready(1), ready(2)}, limits, 1), ElementsAre(0, 1));
  EXPECT_EQ(largest_size(4, limits), 4);
  EXPECT_EQ(largest_size(3, limits), 2);
  EXPECT_EQ(largest_size(3, {.least = 3, .wanted = 4, .refused = {3}}), 0);
}

TEST(ChooseCutOff, of_a_ring_in_which_all_ask_the_first_too_it_is_the_one_of_most_cuts) {
  const std::vector<int64_t> order = {5, 1, 2, 3};
  EXPECT_EQ(choose_cut_off({{1, 2}, {2, 3}, {2, 5}}, order), 2);
  EXPECT_EQ(choose_cut_off({{5, 1}, {1, 5}, {2, 5}, {3, 5}}, order), 5) << "the first";
  EXPECT_EQ(choose_cut_off({{1, 2}}, order), 2) << "of two the later one";
  EXPECT_EQ(choose_cut_off({{5, 1}, {1, 5}}, {5, 1}), 1);
  EXPECT_EQ(choose_cut_off({{1, 5}}, {5, 1}), 1) << "whoever says so";
}

}  // namespace
}  // namespace ingot::resilience
