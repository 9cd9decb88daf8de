#include "resilience/trial_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace ingot::resilience {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

struct Pair {
  std::shared_ptr<NodeStore> store = make_memory_store();
  bool is_there = true;
  TrialExchange of(size_t own) {
    const Round round{.number = 7, .nodes = {{.id = 3, .host = "a", .address = ""}, {.id = 5, .host = "b", .address = ""}}, .own = own};
    return TrialExchange(store, round, [this](const Node&) { return is_there; });
  }
};

const auto goes_on = [] { return false; };

TEST(TrialExchange, tells_each_node_how_it_went_on_all) {
  Pair pair;
  const auto a = pair.of(0), b = pair.of(1);
  EXPECT_EQ(a.failure_elsewhere(1), "");
  std::optional<std::vector<NodeOutcome>> of_a;
  std::thread other([&] { of_a = a.agree(1, {.passed = true, .what = ""}, goes_on, 30s); });
  const auto of_b = b.agree(1, {.failed = 1, .rank = 1, .replicas_differ = true, .odd = 0, .what = "NaN"}, goes_on, 30s);
  other.join();
  ASSERT_TRUE(of_a && of_b);
  for (const auto& all : {*of_a, *of_b}) {
    EXPECT_TRUE(all.at(0).passed);
    EXPECT_FALSE(all.at(1).passed);
    EXPECT_EQ(all[1].rank, 1);
    EXPECT_EQ(all[1].odd, 0);
    EXPECT_TRUE(all[1].replicas_differ);
  }
  EXPECT_EQ(a.failure_elsewhere(1), "node 1 (b): NaN");
  EXPECT_EQ(b.failure_elsewhere(1), "");
  EXPECT_EQ(a.failure_elsewhere(2), "") << "another trial";
}

TEST(TrialExchange, waits_for_no_node_that_is_lost_silent_or_asked_to_stop) {
  Pair pair;
  EXPECT_FALSE(pair.of(0).agree(0, {.what = ""}, goes_on, 100ms));
  EXPECT_FALSE(pair.of(0).agree(
      0, {.what = ""}, [] { return true; }, 1h));
  pair.is_there = false;
  EXPECT_FALSE(pair.of(0).agree(0, {.what = ""}, goes_on, 1h));
  EXPECT_EQ(pair.of(0).failure_elsewhere(0), "node 1 (b) is lost");
}

TEST(TrialExchange, takes_what_it_cannot_read_for_a_failure) {
  for (const char* text : {"", "{}", "[1]", "\xff", "{\"passed\": 1}"}) {
    Pair pair;
    pair.store->put("trial.7.2.1", text);
    const auto all = pair.of(0).agree(2, {.passed = true, .what = ""}, goes_on, 30s);
    ASSERT_TRUE(all) << text;
    EXPECT_FALSE(all->at(1).passed) << text;
    EXPECT_THAT(pair.of(0).failure_elsewhere(2), HasSubstr("cannot be read")) << text;
  }
}

}  // namespace
}  // namespace ingot::resilience
