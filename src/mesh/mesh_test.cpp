#include "mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace ingot::mesh {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string error_of(const ParallelConfig& config, int world) {
  try {
    Mesh(config, 0, world);
  } catch (const base::ConfigError& failure) {
    return failure.what();
  }
  return "";
}

// Written out by hand for 16 ranks: pipeline 2 x data 2 x sequence 2 x tensor 2.
TEST(Mesh, positions_and_members_of_four_axes) {
  const ParallelConfig config{.pipeline = 2, .context = 2, .tensor = 2};
  const Mesh mesh(config, 13, 16);  // 13 = 1 pipeline, 1 data, 0 context, 1 tensor
  EXPECT_EQ(mesh.position(Axis::pipeline), 1);
  EXPECT_EQ(mesh.position(Axis::data), 1);
  EXPECT_EQ(mesh.position(Axis::context), 0);
  EXPECT_EQ(mesh.position(Axis::tensor), 1);
  EXPECT_THAT(mesh.members({Axis::tensor}), ElementsAre(12, 13));
  EXPECT_THAT(mesh.members({Axis::context}), ElementsAre(13, 15));
  EXPECT_THAT(mesh.members({Axis::data}), ElementsAre(9, 13));
  EXPECT_THAT(mesh.members({Axis::pipeline}), ElementsAre(5, 13));
  EXPECT_THAT(mesh.members({Axis::data, Axis::context}), ElementsAre(9, 11, 13, 15));
  EXPECT_EQ(mesh.describe(), "pipeline 2 x data 2 x context 2 x tensor 2");
}

TEST(Mesh, experts_fold_the_ranks_of_a_stage_anew) {
  const Mesh mesh({.pipeline = 2, .tensor = 2, .expert = 4}, 10, 16);  // stage 1 = ranks 8 to 15
  EXPECT_EQ(mesh.size(Axis::data), 4);
  EXPECT_EQ(mesh.size(Axis::expert_data), 2);
  EXPECT_THAT(mesh.members({Axis::expert}), ElementsAre(8, 9, 10, 11));
  EXPECT_THAT(mesh.members({Axis::expert_data}), ElementsAre(10, 14));
  EXPECT_THAT(mesh.members({Axis::tensor}), ElementsAre(10, 11));
  EXPECT_THAT(mesh.members({Axis::data}), ElementsAre(8, 10, 12, 14));
}

// Whatever the sizes: the groups of an axis part the world, each is as large as its axis, and positions tell members apart.
TEST(Mesh, groups_of_every_axis_part_the_world) {
  for (const auto& config :
       {ParallelConfig{}, {.pipeline = 3, .tensor = 2}, {.context = 3, .expert = 6, .tensor_sequence = 4}, {.expert = 24}}) {
    const int world = 24;
    for (const Axis axis :
         {Axis::pipeline, Axis::data, Axis::context, Axis::tensor, Axis::tensor_sequence, Axis::expert, Axis::expert_data}) {
      std::set<std::vector<int>> groups;
      for (int r = 0; r < world; ++r) {
        const Mesh mesh(config, r, world);
        const auto members = mesh.members({axis});
        EXPECT_EQ(members.size(), static_cast<size_t>(mesh.size(axis)));
        EXPECT_EQ(members[static_cast<size_t>(mesh.position(axis))], r);
        groups.insert(members);
      }
      EXPECT_EQ(groups.size() * groups.begin()->size(), static_cast<size_t>(world)) << name_of(axis);
    }
  }
}

TEST(Mesh, slices_of_an_expert_lie_on_neighbours) {
  const Mesh mesh({.tensor = 2, .expert = 2, .expert_tensor = 2}, 6, 8);  // 6 = expert_data 1, expert 1, slice 0
  EXPECT_EQ(mesh.size(Axis::expert_data), 2);
  EXPECT_EQ(mesh.position(Axis::expert), 1);
  EXPECT_EQ(mesh.position(Axis::expert_tensor), 0);
  EXPECT_THAT(mesh.members({Axis::expert_tensor}), ElementsAre(6, 7));
  EXPECT_THAT(mesh.members({Axis::expert}), ElementsAre(4, 6));
  EXPECT_THAT(mesh.members({Axis::expert, Axis::expert_tensor}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.members({Axis::expert_data}), ElementsAre(2, 6));
}

TEST(Mesh, sizes_that_do_not_fit_are_refused_with_those_that_would) {
  EXPECT_THAT(error_of({.tensor = 3}, 8), AllOf(HasSubstr("does not divide the 8 ranks"), HasSubstr("1, 2, 4, 8")));
  EXPECT_THAT(error_of({.data = 3, .tensor = 2}, 8), HasSubstr("parallel.data = 4 would work"));
  EXPECT_THAT(error_of({.pipeline = 2, .expert = 3}, 8), AllOf(HasSubstr("parallel.expert = 3"), HasSubstr("they may be 1, 2, 4")));
  EXPECT_THAT(error_of({.tensor = 2, .tensor_sequence = 2}, 8), HasSubstr("one of them must be 1"));
  EXPECT_EQ(error_of({.data = 4, .tensor = 2, .expert = 8}, 8), "");
}

TEST(Mesh, the_rank_map_has_a_line_for_each_rank) {
  const auto map = Mesh({.tensor = 2}, 0, 4).rank_map();
  EXPECT_THAT(map, HasSubstr("rank    3:  data 1  tensor 1\n"));
  EXPECT_EQ(std::count(map.begin(), map.end(), '\n'), 4);
}

}  // namespace
}  // namespace ingot::mesh
