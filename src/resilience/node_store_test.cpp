#include "resilience/node_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <thread>
#include <vector>

#include "base/error.h"

namespace ingot::resilience {
namespace {

namespace fs = std::filesystem;

class NodeStores : public ::testing::TestWithParam<std::string> {
 protected:
  ~NodeStores() override { fs::remove_all(folder_); }
  // As each of several launchers has it.
  std::shared_ptr<NodeStore> open() {
    if (GetParam() == "memory") return memory_;
    if (GetParam() == "folder") return make_folder_store(folder_);
    const bool is_first = !is_held_.exchange(true);
    return make_tcp_store("127.0.0.1", port_, is_first, std::chrono::seconds(10));
  }
  const fs::path folder_ = fs::temp_directory_path() / fmt::format("ingot_node_store_{}", getpid()) / "deep";
  const int port_ = 20000 + getpid() % 10000;
  std::shared_ptr<NodeStore> memory_ = make_memory_store();
  std::atomic<bool> is_held_ = false;
};

TEST_P(NodeStores, what_one_writes_the_other_reads) {
  const auto one = open(), other = open();
  EXPECT_EQ(other->get("beat.0"), std::nullopt);
  one->put("beat.0", "first, and longer");
  EXPECT_EQ(other->get("beat.0"), "first, and longer");
  one->put("beat.0", "second");
  EXPECT_EQ(other->get("beat.0"), "second");
  for (int turn = 0; turn < 300; ++turn) {
    one->put("beat.0", std::to_string(turn));
    ASSERT_EQ(other->get("beat.0"), std::to_string(turn)) << "what was put is there as soon as put() returns";
  }
  EXPECT_EQ(one->create("round.0", "mine"), "mine");
  EXPECT_EQ(other->create("round.0", "theirs"), "mine");
  EXPECT_EQ(other->get("round.0"), "mine");
}

TEST_P(NodeStores, of_many_that_create_at_once_one_is_first_for_all) {
  std::vector<std::shared_ptr<NodeStore>> stores;
  for (int t = 0; t < 8; ++t) stores.push_back(open());
  for (int turn = 0; turn < 20; ++turn) {
    std::vector<std::string> found(stores.size());
    std::vector<std::thread> threads;
    for (size_t t = 0; t < stores.size(); ++t)
      threads.emplace_back([&, t] { found[t] = stores[t]->create(fmt::format("round.{}", turn), fmt::format("of {}", t)); });
    for (auto& thread : threads) thread.join();
    EXPECT_THAT(found, ::testing::Each(found[0]));
    EXPECT_THAT(found[0], ::testing::StartsWith("of "));
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, NodeStores, ::testing::Values("memory", "folder", "tcp"),
                         [](const auto& instance) { return instance.param; });

TEST(NodeStore, a_text_that_is_not_all_there_is_none) {
  const auto folder = fs::temp_directory_path() / fmt::format("ingot_node_store_torn_{}", getpid());
  const auto store = make_folder_store(folder);
  std::ofstream(folder / "beat.0") << "{\"beat\": 1";
  EXPECT_EQ(store->get("beat.0"), std::nullopt);
  for (const auto& entry : fs::directory_iterator(folder)) EXPECT_EQ(entry.path().filename(), "beat.0") << "nothing else is left";
  fs::remove_all(folder);
}

TEST(NodeStore, places_where_nobody_can_meet_are_named) {
  const auto error_of = [](const auto& open) {
    try {
      open();
    } catch (const base::CommError& failure) {
      return std::string(failure.what());
    }
    return std::string();
  };
  EXPECT_THAT(error_of([] { make_folder_store("/dev/null/nodes"); }), ::testing::HasSubstr("nodes cannot meet in /dev/null/nodes"));
  EXPECT_THAT(error_of([] { make_tcp_store("127.0.0.1", 1, false, std::chrono::seconds(1)); }),
              ::testing::HasSubstr("could not reach 127.0.0.1:1"));
}

}  // namespace
}  // namespace ingot::resilience
