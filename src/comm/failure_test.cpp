// Whatever goes wrong, every rank's wait ends, and with a message that names who is missing or astray.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

#include "comm/test_departures.h"
#include "comm/test_ranks.h"

namespace ingot::comm {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

class Failures : public ::testing::TestWithParam<Fabrics> {
 protected:
  static WorldOptions patience(double seconds) {
    WorldOptions options;
    options.timeout = std::chrono::duration<double>(seconds);
    return options;
  }
};

TEST_P(Failures, a_rank_that_does_not_come_is_named_with_operation_axis_and_step) {
  Departures departures;
  const auto outcomes = outcomes_on(
      GetParam(), 3,
      [&](World& world) {
        auto group = world.group("data", {0, 1, 2});
        world.ledger().set_step(41);
        group->barrier();
        world.ledger().set_step(42);
        if (world.rank() == 1) {
          departures.wait_for(2);  // past the others' patience and their monitored barrier
          return;
        }
        const Departures::Leaving leaving(departures);
        auto x = at::ones({1024}, at::kFloat);
        group->all_reduce(x);
      },
      patience(1));
  EXPECT_EQ(outcomes[1], "");
  for (const int survivor : {0, 2})
    EXPECT_THAT(outcomes[static_cast<size_t>(survivor)],
                AllOf(HasSubstr("all_reduce of 4.0 KiB Float"), HasSubstr("axis data"), HasSubstr("step 42"), HasSubstr("rank 1"),
                      HasSubstr("1 s (resilience.comm_timeout_s)")));
}

TEST_P(Failures, messages_too_have_a_deadline) {
  Departures departures;
  const auto outcomes = outcomes_on(
      GetParam(), 2,
      [&](World& world) {
        auto& group = world.everyone();
        group.barrier();
        auto x = at::zeros({4}, at::kFloat);
        if (world.rank() == 1) return departures.wait_for(1);
        const Departures::Leaving leaving(departures);
        group.receive(x, 1);
      },
      patience(0.5));
  EXPECT_THAT(outcomes[0], AllOf(HasSubstr("receive"), HasSubstr("rank 1")));
  EXPECT_EQ(outcomes[1], "");
}

TEST_P(Failures, a_rank_that_throws_ends_the_others_at_once) {
  const auto start = Clock::now();
  const auto outcomes = outcomes_on(
      GetParam(), 3,
      [](World& world) {
        auto group = world.group("data", {0, 1, 2});
        group->barrier();
        if (world.rank() == 2) throw std::runtime_error("out of luck");
        auto x = at::ones({100'000}, at::kFloat);
        group->all_reduce(x);
      },
      patience(60));
  EXPECT_EQ(outcomes[2], "out of luck");
  EXPECT_THAT(outcomes[0], HasSubstr("rank 2"));
  EXPECT_THAT(outcomes[1], HasSubstr("rank 2"));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
}

TEST_P(Failures, a_killed_process_ends_the_others_at_once) {
  if (GetParam() == Fabrics::threads) return;
  const auto start = Clock::now();
  const auto outcomes = outcomes_on(
      GetParam(), 3,
      [](World& world) {
        auto group = world.group("data", {0, 1, 2});
        auto x = at::ones({300'000}, at::kFloat);
        for (int i = 0; i < 1000; ++i) {
          if (world.rank() == 1 && i == 5) kill(getpid(), SIGKILL);
          group->all_reduce(x);
        }
      },
      patience(60));
  EXPECT_EQ(outcomes[1], "signal 9");
  for (const int survivor : {0, 2})
    EXPECT_THAT(outcomes[static_cast<size_t>(survivor)], AllOf(HasSubstr("axis data"), HasSubstr("rank 1")));
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
}

TEST_P(Failures, ranks_in_different_operations_are_told_apart) {
  if (GetParam() == Fabrics::gloo) return;  // messages carry no description there: the ledgers tell (ledger_test)
  const auto outcomes = outcomes_on(
      GetParam(), 2,
      [](World& world) {
        auto& group = world.everyone();
        auto x = at::ones({64}, at::kFloat), y = at::ones({128}, at::kFloat);
        if (world.rank() == 0) group.all_reduce(x);
        else group.all_gather(y, x);
      },
      patience(10));
  EXPECT_THAT(outcomes[0], AllOf(HasSubstr("rank 1"), HasSubstr("all_gather")));
  EXPECT_THAT(outcomes[1], AllOf(HasSubstr("rank 0"), HasSubstr("all_reduce")));
  const auto sizes = outcomes_on(
      GetParam(), 2,
      [](World& world) {
        auto x = at::ones({world.rank() == 0 ? 5000 : 5001}, at::kFloat);
        world.everyone().all_reduce(x);
      },
      patience(10));
  EXPECT_THAT(sizes[0], HasSubstr("20004 bytes"));
  EXPECT_THAT(sizes[1], HasSubstr("20000 bytes"));
}

TEST_P(Failures, uneven_pieces_that_do_not_match_are_refused) {
  if (GetParam() == Fabrics::gloo) return;
  const auto outcomes = outcomes_on(
      GetParam(), 2,
      [](World& world) {
        const auto in = at::ones({4}, at::kFloat), out = at::ones({world.rank() == 0 ? 4 : 5}, at::kFloat);
        world.everyone().all_to_all(out, {2, world.rank() == 0 ? 2 : 3}, in,
                                    world.rank() == 0 ? std::vector<int64_t>{2, 2} : std::vector<int64_t>{1, 3});
      },
      patience(10));
  EXPECT_THAT(outcomes[0], AnyOf(HasSubstr("sends 1 elements where this rank expects 2"), HasSubstr("has failed")));
}

TEST(Arguments, are_checked_before_anything_is_sent) {
  World world;
  auto group = world.group("data", {0});
  const auto x = at::ones({4, 4}, at::kFloat);
  const auto error_of = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const std::exception& failure) {
      return failure.what();
    }
    return "";
  };
  EXPECT_THAT(error_of([&] { group->all_reduce(x.t().narrow(0, 0, 2)); }), HasSubstr("not contiguous"));
  EXPECT_THAT(error_of([&] { group->all_reduce(at::Tensor()); }), HasSubstr("undefined"));
  EXPECT_THAT(error_of([&] { group->all_reduce(at::ones({1}, at::kComplexFloat)); }), HasSubstr("ComplexFloat"));
  EXPECT_THAT(error_of([&] { group->broadcast(x, 1); }), HasSubstr("ranks 0 to 0"));
  EXPECT_THAT(error_of([&] { group->send(x, 0); }), HasSubstr("no peer 0"));
  EXPECT_THAT(error_of([&] { group->all_gather(x, x.view({16}).narrow(0, 0, 3)); }), HasSubstr("all_gather"));
  EXPECT_THAT(error_of([&] { world.group("data", {0, 1}); }), HasSubstr("in a world of 1"));
}

TEST(Rendezvous, says_who_did_not_come) {
  WorldOptions options;
  options.rendezvous_timeout = std::chrono::seconds(1);
  RankEnvironment environment;
  environment.size = 3;
  environment.address = "127.0.0.1";
  environment.port = free_port();
  environment.launcher = "test";
  try {
    World::join(environment, false, options);
    FAIL() << "joined alone";
  } catch (const std::exception& failure) {
    EXPECT_THAT(std::string(failure.what()), AllOf(HasSubstr("2 of 3 ranks did not come"), HasSubstr("1, 2")));
  }
  environment.rank = 1;
  try {
    World::join(environment, false, options);
    FAIL() << "joined without a store";
  } catch (const std::exception& failure) {
    EXPECT_THAT(std::string(failure.what()), AllOf(HasSubstr("127.0.0.1:"), HasSubstr("Is rank 0 running")));
  }
}

INSTANTIATE_TEST_SUITE_P(Fabrics, Failures, ::testing::Values(Fabrics::threads, Fabrics::shared_memory, Fabrics::gloo),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace ingot::comm
