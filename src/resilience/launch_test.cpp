#include "resilience/launch.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace ingot::resilience {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const LaunchOptions& options) {
  try {
    launch(options);
  } catch (const base::UsageError& refused) {
    return refused.what();
  }
  return "";
}

TEST(Launch, wrong_calls_are_refused_before_anything_starts) {
  EXPECT_THAT(refusal({}), HasSubstr("ingot launch -n 2 -- ingot train"));
  EXPECT_THAT(refusal({.nodes_least = 2, .nodes_wanted = 2, .node_rank = 2, .command = {"true"}}),
              AllOf(HasSubstr("--node-rank 2"), HasSubstr("from 0 to 1")));
  EXPECT_THAT(refusal({.nodes_least = 1, .nodes_wanted = 2, .command = {"true"}}),
              AllOf(HasSubstr("--rendezvous"), HasSubstr("HOST:PORT of node 0")));
  EXPECT_THAT(refusal({.nodes_least = 3, .nodes_wanted = 2, .command = {"true"}}), HasSubstr("--nodes 3:2"));
  EXPECT_THAT(refusal({.nodes_least = 1, .nodes_wanted = 2, .rendezvous = "node0:29500", .command = {"true"}}),
              AllOf(HasSubstr("--node-rank"), HasSubstr("A folder that all nodes share")));
  for (const char* address : {"node0", ":29500", "node0:", "node0:x", "node0:0", "node0:65536"})
    EXPECT_THAT(refusal({.rendezvous = address, .command = {"true"}}), AllOf(HasSubstr(address), HasSubstr("write HOST:PORT"))) << address;
}

TEST(Launch, status_is_that_of_the_job) {
  EXPECT_EQ(launch({.ranks = 2, .command = {"true"}}), 0);
  EXPECT_EQ(launch({.ranks = 2, .grace_s = 1, .command = {"sh", "-c", "exit 7"}}), 1);
}

TEST(Launch, ranks_are_started_again_but_not_after_wrong_usage) {
  const auto file = std::filesystem::temp_directory_path() / "ingot_launch_test";
  const auto attempts = [&](const char* status, int64_t restarts) {
    std::ofstream(file, std::ios::trunc).close();
    launch({.max_restarts = restarts, .grace_s = 1, .command = {"sh", "-c", "echo >>" + file.string() + "; exit " + status}});
    const auto size = std::filesystem::file_size(file);
    std::filesystem::remove(file);
    return size;
  };
  EXPECT_EQ(attempts("1", 2), 3);
  EXPECT_EQ(attempts("2", 2), 1);
}

}  // namespace
}  // namespace ingot::resilience
