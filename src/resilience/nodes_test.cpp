// Launchers as threads: who forms rounds, what ends them, and what goes on then.
#include "resilience/nodes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "base/error.h"

namespace ingot::resilience {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;

// The meeting place as one node sees it, or all of them, with what can be wrong there.
enum class Trouble {
  none,
  full,   // a disk that takes no new file
  dying,  // of a machine that loses its power: nothing that it writes comes any more
  gone,   // a file server that starts again
};

class TroubledStore : public NodeStore {
 public:
  explicit TroubledStore(std::shared_ptr<NodeStore> store = make_memory_store()) : store_(std::move(store)) {}
  void put(const std::string& name, const std::string& text) override {
    if (trouble == Trouble::gone) throw base::CommError("no such folder");
    if (trouble != Trouble::dying) store_->put(name, text);
  }
  std::optional<std::string> get(const std::string& name) override { return trouble == Trouble::gone ? std::nullopt : store_->get(name); }
  std::string create(const std::string& name, const std::string& text) override {
    if (trouble == Trouble::gone) throw base::CommError("no such folder");
    if (trouble == Trouble::full) throw base::CommError("no space left on device");
    return store_->create(name, text);
  }
  std::atomic<Trouble> trouble = Trouble::none;

 private:
  std::shared_ptr<NodeStore> store_;
};

class NodesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Nodes> node(int64_t least, int64_t wanted, int64_t node_rank = -1) {
    return std::make_unique<Nodes>(store_, NodeOptions{.least = least,
                                                       .wanted = wanted,
                                                       .ranks = 2,
                                                       .node_rank = node_rank,
                                                       .address = "127.0.0.1",
                                                       .lease_s = 1,
                                                       .patience_s = 0.3,
                                                       .timeout_s = 2});
  }
  static std::future<std::optional<Round>> next(Nodes& node, const std::atomic<bool>& stop = never_) {
    return std::async(std::launch::async, [&node, &stop] { return node.next([&stop] { return stop.load(); }); });
  }
  static std::vector<Round> next_of(const std::vector<Nodes*>& nodes) {
    std::vector<std::future<std::optional<Round>>> waits;
    for (auto* node : nodes) waits.push_back(next(*node));
    std::vector<Round> rounds;
    for (auto& wait : waits) rounds.push_back(wait.get().value());
    return rounds;
  }
  static bool finish(Nodes& node, const Round& round) {
    return node.finish(round, [] { return false; });
  }
  static inline const std::atomic<bool> never_ = false;
  std::shared_ptr<NodeStore> store_ = make_memory_store();
};

TEST_F(NodesTest, all_that_are_wanted_form_a_round_and_end_it_together) {
  auto a = node(3, 3), b = node(3, 3), c = node(3, 3);
  const auto rounds = next_of({a.get(), b.get(), c.get()});
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(rounds[i].number, 0);
    EXPECT_EQ(rounds[i].ranks(), 6);
    EXPECT_EQ(rounds[i].own, i);
    EXPECT_EQ(rounds[i].first_rank(), static_cast<int64_t>(2 * i));
    EXPECT_EQ(rounds[i].port, rounds[0].port);
  }
  auto first = std::async(std::launch::async, [&] { return finish(*a, rounds[0]); });
  EXPECT_EQ(first.wait_for(300ms), std::future_status::timeout) << "the others' ranks use its store";
  auto second = std::async(std::launch::async, [&] { return finish(*b, rounds[1]); });
  EXPECT_TRUE(finish(*c, rounds[2]));
  EXPECT_TRUE(first.get() && second.get());
  EXPECT_EQ(next(*a).get(), std::nullopt);
  EXPECT_EQ(a->status(), 0);
}

TEST_F(NodesTest, places_that_were_given_are_kept) {
  auto late = node(2, 2, 1), early = node(2, 2, 0);
  const auto rounds = next_of({late.get(), early.get()});
  EXPECT_EQ(rounds[0].own, 1u);
  EXPECT_EQ(rounds[1].own, 0u);
}

TEST_F(NodesTest, a_failure_is_known_to_all_and_the_next_round_has_its_history) {
  auto a = node(2, 2), b = node(2, 2);
  auto rounds = next_of({a.get(), b.get()});
  EXPECT_EQ(a->failure_in(rounds[0], 0), "");
  b->agree(rounds[1], {.cause = Cause::crash, .step = 7, .signature = "x"}, "rank 3 exited with status 1");
  EXPECT_THAT(a->failure_in(rounds[0], 0), HasSubstr("rank 3 exited with status 1 on node 1"));
  EXPECT_EQ(a->agree(rounds[0], {.cause = Cause::elsewhere}, "elsewhere").step, 7) << "the first one counts";
  rounds = next_of({a.get(), b.get()});
  EXPECT_EQ(rounds[0].number, 1);
  ASSERT_EQ(a->failures_before(rounds[0]).size(), 1u);
  EXPECT_EQ(a->failures_before(rounds[0])[0].cause, Cause::crash);
}

TEST_F(NodesTest, a_lost_node_is_named_and_the_others_go_on_without_it) {
  auto a = node(2, 3), b = node(2, 3), c = node(2, 3);
  auto rounds = next_of({a.get(), b.get(), c.get()});
  a.reset();  // the first one, which held the ranks' store
  std::string said;
  const auto since = std::chrono::steady_clock::now();
  while ((said = c->failure_in(rounds[2], 12)).empty()) std::this_thread::sleep_for(20ms);
  EXPECT_LT(std::chrono::steady_clock::now() - since, 2s);
  EXPECT_THAT(said, HasSubstr("node 0 ("));
  EXPECT_THAT(said, HasSubstr("is lost"));
  EXPECT_THAT(b->failure_in(rounds[1], 0), HasSubstr("is lost"));
  EXPECT_TRUE(c->has_reported(rounds[2]));
  EXPECT_FALSE(b->has_reported(rounds[1]));
  rounds = next_of({b.get(), c.get()});
  EXPECT_EQ(rounds[0].ranks(), 4);
  EXPECT_EQ(rounds[0].own, 0u);
  EXPECT_EQ(b->failures_before(rounds[0])[0].step, 12);
}

TEST_F(NodesTest, a_spare_waits_and_takes_the_place_of_a_lost_node) {
  auto a = node(2, 2), b = node(2, 2);
  auto rounds = next_of({a.get(), b.get()});
  auto spare = node(2, 2);
  auto waiting = next(*spare);
  EXPECT_EQ(waiting.wait_for(500ms), std::future_status::timeout);
  EXPECT_FALSE(a->regroups(rounds[0])) << "as many as are wanted are at work";
  b.reset();
  while (a->failure_in(rounds[0], 0).empty()) std::this_thread::sleep_for(20ms);
  rounds = next_of({a.get()});
  EXPECT_EQ(rounds[0].nodes.size(), 2u);
  EXPECT_EQ(waiting.get().value().own, 1u);
}

TEST_F(NodesTest, spares_wait_while_the_nodes_of_a_failed_round_try_it_in_other_ways) {
  auto a = node(2, 2), b = node(2, 2);
  const auto rounds = next_of({a.get(), b.get()});
  auto c = node(2, 2), d = node(2, 2);
  auto of_c = next(*c), of_d = next(*d);
  a->begin_trials(rounds[0]);
  a->agree(rounds[0], {.step = 3, .signature = "status 1"}, "a failure");
  EXPECT_EQ(of_c.wait_for(700ms), std::future_status::timeout) << "they are enough for a round";
  EXPECT_TRUE(c->is_spare());
  EXPECT_TRUE(b->is_there(rounds[1].nodes[0]));
  a->end_trials(rounds[0]);
  EXPECT_EQ(of_c.get().value().nodes.size(), 2u);
  EXPECT_TRUE(of_d.get());
  EXPECT_FALSE(c->is_spare());
}

TEST_F(NodesTest, who_comes_later_is_taken_in) {
  auto a = node(1, 2);
  auto rounds = next_of({a.get()});
  EXPECT_EQ(rounds[0].nodes.size(), 1u);
  auto b = node(1, 2);
  auto coming = next(*b);
  while (!a->regroups(rounds[0])) std::this_thread::sleep_for(20ms);
  EXPECT_THAT(a->why_it_regroups(rounds[0]), HasSubstr("1 spare node is there"));
  EXPECT_FALSE(finish(*a, rounds[0])) << "the ranks have saved; the job goes on";
  rounds = next_of({a.get()});
  EXPECT_EQ(rounds[0].nodes.size(), 2u);
  EXPECT_TRUE(coming.get());
}

TEST_F(NodesTest, who_goes_is_done_without_and_too_few_end_the_job) {
  auto a = node(1, 2), b = node(1, 2);
  auto rounds = next_of({a.get(), b.get()});
  b->leave(rounds[1]);
  b.reset();
  EXPECT_TRUE(a->regroups(rounds[0]));
  EXPECT_FALSE(finish(*a, rounds[0]));
  EXPECT_EQ(a->failure_in(rounds[0], 0), "");
  rounds = next_of({a.get()});
  EXPECT_EQ(rounds[0].nodes.size(), 1u);
}

TEST_F(NodesTest, where_one_goes_and_too_few_are_left_all_end) {
  auto a = node(2, 2), b = node(2, 2);
  const auto rounds = next_of({a.get(), b.get()});
  b->leave(rounds[1]);
  b.reset();
  EXPECT_FALSE(finish(*a, rounds[0]));
  EXPECT_EQ(next(*a).get(), std::nullopt);
  EXPECT_EQ(a->status(), 0);
}

TEST_F(NodesTest, a_size_that_the_job_refuses_is_left_out_once_it_has_worked) {
  auto a = node(1, 3), b = node(1, 3), c = node(1, 3);
  auto rounds = next_of({a.get(), b.get(), c.get()});
  a->agree(rounds[0], {.cause = Cause::killed, .step = 5}, "killed");
  c.reset();
  rounds = next_of({a.get(), b.get()});
  ASSERT_EQ(rounds[0].nodes.size(), 2u);
  a->agree(rounds[0], {.cause = Cause::usage, .step = 0}, "batch does not divide");
  EXPECT_TRUE(a->fits_fewer(rounds[0]));
  auto left_out = next(*b);
  rounds = next_of({a.get()});
  EXPECT_EQ(rounds[0].nodes.size(), 1u);
  EXPECT_EQ(left_out.wait_for(300ms), std::future_status::timeout);
  EXPECT_FALSE(a->regroups(rounds[0])) << "two would not fit";
  a->end(rounds[0], 0);
  EXPECT_EQ(left_out.get(), std::nullopt);
}

TEST_F(NodesTest, a_job_that_was_called_wrongly_from_the_beginning_is_not_tried_with_fewer) {
  auto a = node(1, 2), b = node(1, 2);
  const auto rounds = next_of({a.get(), b.get()});
  a->agree(rounds[0], {.cause = Cause::usage}, "no such file");
  EXPECT_FALSE(a->fits_fewer(rounds[0]));
}

TEST_F(NodesTest, what_an_earlier_job_left_behind_is_another_job) {
  {
    auto a = node(1, 1 + 1);
    const auto rounds = next_of({a.get()});
    a->agree(rounds[0], {.cause = Cause::crash, .step = 3}, "it crashed");
  }  // and nobody ended it
  auto a = node(1, 2), b = node(1, 2);
  const auto rounds = next_of({a.get(), b.get()});
  EXPECT_EQ(rounds[0].nodes.size(), 2u);
  EXPECT_TRUE(a->failures_before(rounds[0]).empty());
  a->end(rounds[0], 0);
  auto later = node(1, 2);
  EXPECT_EQ(next(*later).get().value().first, rounds[0].number + 1);
}

// A bug: longer than the lease, and each node took the others for lost, as their beats stood still.
TEST_F(NodesTest, nobody_is_lost_while_the_meeting_place_is_gone) {
  const auto place = std::make_shared<TroubledStore>();
  store_ = place;
  auto a = node(2, 3), b = node(2, 3);
  const auto rounds = next_of({a.get(), b.get()});
  place->trouble = Trouble::gone;
  for (int i = 0; i < 150; ++i, std::this_thread::sleep_for(20ms)) {
    if (i == 80) place->trouble = Trouble::none;
    for (auto* node : {a.get(), b.get()}) ASSERT_EQ(node->failure_in(rounds[node == b.get()], 4), "") << i;
  }
  b.reset();
  std::string said;
  for (int i = 0; i < 100 && said.empty(); ++i, std::this_thread::sleep_for(20ms)) said = a->failure_in(rounds[0], 4);
  EXPECT_THAT(said, HasSubstr("is lost"));
}

TEST_F(NodesTest, what_nobody_of_them_wrote_is_no_end_of_the_world) {
  const char* const texts[] = {"", "{", "[1]", "{}",
                               R"({"ranks": "two", "host": 3, "port": [], "place": {}, "ready": "x", "left": 1, "what": 7})"};
  for (const char* text : texts) {
    store_ = make_memory_store();
    auto a = node(1, 3);
    const auto rounds = next_of({a.get()});
    for (const char* name : {"node.1", "beat.1", "failed.0", "regroup.0", "without.0"}) store_->put(name, text);
    EXPECT_NO_THROW({
      a->failure_in(rounds[0], 3);
      a->regroups(rounds[0]);
      a->why_it_regroups(rounds[0]);
      a->agree(rounds[0], {.step = 3}, "a failure");
      a->failures_before({.number = 1, .first = 0});
      a->fits_fewer(rounds[0]);
      a->is_cut_off(rounds[0]);
      a->has_reported(rounds[0]);
    }) << text;
  }
}

TEST_F(NodesTest, a_full_disk_ends_no_job_and_loses_no_failure) {
  const auto disk = std::make_shared<TroubledStore>();
  store_ = disk;
  auto a = node(1, 3), b = node(1, 3);
  const auto rounds = next_of({a.get(), b.get()});
  auto spare = node(1, 3);
  std::atomic<bool> stop = false;
  auto waiting = next(*spare, stop);
  disk->trouble = Trouble::full;
  const auto until = std::chrono::steady_clock::now() + 1500ms;
  while (std::chrono::steady_clock::now() < until) {
    EXPECT_FALSE(a->regroups(rounds[0]));
    std::this_thread::sleep_for(50ms);
  }
  EXPECT_EQ(a->agree(rounds[0], {.cause = Cause::crash, .step = 9}, "it crashed").step, 9);
  b.reset();
  std::string said;
  for (int i = 0; i < 100 && said.empty(); ++i, std::this_thread::sleep_for(20ms)) said = a->failure_in(rounds[0], 9);
  EXPECT_THAT(said, HasSubstr("is lost"));
  stop = true;
  EXPECT_EQ(waiting.get(), std::nullopt);
}

// A bug: they were taken for dead one after the other, each after a lease of its own.
TEST_F(NodesTest, nodes_that_died_together_are_waited_for_once) {
  const auto shared = store_;
  const auto dying = std::make_shared<TroubledStore>(shared);
  store_ = dying;
  const auto all = [&](const std::function<std::unique_ptr<Nodes>()>& make) {
    std::vector<std::unique_ptr<Nodes>> nodes;
    for (int i = 0; i < 4; ++i) nodes.push_back(make());
    std::vector<Nodes*> pointers;
    for (auto& one : nodes) pointers.push_back(one.get());
    EXPECT_EQ(next_of(pointers)[0].nodes.size(), 4u);
    dying->trouble = Trouble::dying;
  };
  all([&] { return node(4, 4); });
  store_ = shared;
  const auto since = std::chrono::steady_clock::now();
  all([&] { return node(4, 4); });
  EXPECT_LT(std::chrono::steady_clock::now() - since, 1900ms) << "the lease is 1 s";
}

// A bug: it ended with an exception of the JSON library.
TEST_F(NodesTest, where_one_is_lost_and_too_few_are_left_they_wait_for_another) {
  auto a = node(2, 2), b = node(2, 2);
  const auto rounds = next_of({a.get(), b.get()});
  b.reset();
  a->agree(rounds[0], {.cause = Cause::killed, .step = 3}, "node 1 is lost");
  auto waits = next(*a);
  EXPECT_EQ(waits.wait_for(1200ms), std::future_status::timeout);
  auto c = node(2, 2);
  EXPECT_EQ(next(*c).get().value().number, 1);
  EXPECT_EQ(waits.get().value().number, 1);
}

// A bug: where no node could write that the round had failed, as the folder was away, each waited as a spare, and none worked.
TEST_F(NodesTest, a_failure_that_no_node_could_write_is_written_when_the_place_is_back) {
  const auto full = std::make_shared<TroubledStore>();
  store_ = full;
  auto a = node(2, 2), b = node(2, 2);
  const auto rounds = next_of({a.get(), b.get()});
  full->trouble = Trouble::full;
  const FailedAttempt own{.cause = Cause::killed, .step = 7, .signature = "", .started_s = 1, .ended_s = 2};
  EXPECT_EQ(a->agree(rounds[0], own, "rank 0 was ended by signal 9").step, 7);
  EXPECT_EQ(b->agree(rounds[1], own, "rank 1 was ended by signal 9").step, 7);
  full->trouble = Trouble::none;
  std::atomic<bool> stop = false;
  auto next_a = next(*a, stop), next_b = next(*b, stop);
  const bool go_on = next_a.wait_for(4s) == std::future_status::ready && next_b.wait_for(4s) == std::future_status::ready;
  stop = true;
  const auto after_a = next_a.get(), after_b = next_b.get();
  ASSERT_TRUE(go_on);
  EXPECT_EQ(after_a.value().number, 1);
  ASSERT_EQ(b->failures_before(after_b.value()).size(), 1);
  EXPECT_EQ(b->failures_before(after_b.value())[0].step, 7);
}

// A bug: the first launcher of a job that is started again after all nodes of the earlier one were asked to go took that for its own end.
TEST_F(NodesTest, a_job_that_is_started_again_after_all_have_gone_waits_for_its_nodes) {
  {
    auto a = node(2, 3), b = node(2, 3);
    const auto rounds = next_of({a.get(), b.get()});
    a->leave(rounds[0]);
    b->leave(rounds[1]);
  }
  auto c = node(2, 3);
  auto next_c = next(*c);
  EXPECT_EQ(next_c.wait_for(1500ms), std::future_status::timeout) << "alone, it ended the job";
  auto d = node(2, 3);
  auto next_d = next(*d);
  const auto round = next_c.get();
  ASSERT_TRUE(round && next_d.get());
  EXPECT_EQ(round->number, 1);
  EXPECT_EQ(round->first, 1) << "another job";
}

TEST_F(NodesTest, what_no_launcher_wrote_is_named) {
  store_->put("round.0", "{}");
  EXPECT_THROW(node(1, 2), base::CommError);
}

TEST_F(NodesTest, too_few_in_time_and_a_stop_end_the_wait) {
  auto a = node(2, 2);
  try {
    next(*a).get();
    FAIL() << "one of two is too few";
  } catch (const base::CommError& failure) {
    EXPECT_THAT(failure.what(), HasSubstr("only 1 of at least 2 nodes came within 2 s"));
  }
  std::atomic<bool> stop = false;
  auto waiting = next(*a, stop);
  stop = true;
  EXPECT_EQ(waiting.get(), std::nullopt);
}

}  // namespace
}  // namespace ingot::resilience
