#include "health/exclusion_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "health/host_list.h"

namespace ingot::health {
namespace {

namespace fs = std::filesystem;

class ExclusionList : public testing::Test {
 protected:
  void SetUp() override { fs::remove(list_); }
  void TearDown() override { fs::remove(list_); }
  const fs::path list_ = fs::temp_directory_path() / ("ingot-excluded-" + std::to_string(::getpid()));
};

TEST_F(ExclusionList, keeps_each_node_once_with_the_reason_on_its_line) {
  EXPECT_FALSE(is_excluded(list_, "node7"));
  exclude(list_, "node7", "GPU 1 has rows of memory\nto be replaced");
  exclude(list_, "node7", "once more");
  exclude(list_, "node71", "slow");
  EXPECT_TRUE(is_excluded(list_, "node7"));
  EXPECT_FALSE(is_excluded(list_, "node"));
  EXPECT_THAT(base::read_file(list_),
              testing::MatchesRegex("node7  # 20..-..-..T..:..:..Z: GPU 1 has rows of memory to be replaced\nnode71  # [^\n]*: slow\n"));
}

TEST_F(ExclusionList, may_be_written_by_hand) {
  std::ofstream(list_) << "# mended on Monday\nnode[01-03],gpu7\n";
  EXPECT_TRUE(is_excluded(list_, "node02"));
  EXPECT_TRUE(is_excluded(list_, "gpu7"));
  EXPECT_FALSE(is_excluded(list_, "mended"));
  std::ofstream(list_) << "node[1-\n";
  EXPECT_THROW(is_excluded(list_, "node1"), base::DataError);
}

TEST_F(ExclusionList, takes_many_nodes_at_once) {
  std::vector<std::thread> nodes;
  for (int i = 0; i < 16; ++i) nodes.emplace_back([&, i] { exclude(list_, "node" + std::to_string(i), "why"); });
  for (auto& node : nodes) node.join();
  EXPECT_EQ(parse_host_file(base::read_file(list_)).size(), 16U);
}

}  // namespace
}  // namespace ingot::health
