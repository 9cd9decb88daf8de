// Signals that interrupt system calls (a handler without SA_RESTART, as profilers install it; the kernel's work for an io_uring acts
// alike) change no result, and no wait ends before its deadline or long after it.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <thread>

#include "comm/test_departures.h"
#include "comm/test_ranks.h"

namespace ingot::comm {
namespace {

using ::testing::AllOf;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;

constexpr int kRanks = 3;

std::atomic<int64_t> interruptions{0};
void count_one(int) { interruptions.fetch_add(1, std::memory_order_relaxed); }

// Interrupts all other threads of this process, several thousand times a second between them, as long as it lives.
class Bombardment {
 public:
  Bombardment() {
    struct sigaction action {};
    action.sa_handler = count_one;  // stays: a last signal may still be on its way
    sigaction(SIGUSR1, &action, nullptr);
    thread_ = std::thread([this] { run(); });
  }
  ~Bombardment() {
    is_over_ = true;
    thread_.join();
  }

 private:
  void run() const {
    const auto process = getpid(), own = static_cast<pid_t>(syscall(SYS_gettid));
    const std::unique_ptr<DIR, int (*)(DIR*)> threads(opendir("/proc/self/task"), closedir);
    while (!is_over_) {
      rewinddir(threads.get());
      while (const dirent* thread = readdir(threads.get())) {
        const auto number = static_cast<pid_t>(std::atoi(thread->d_name));
        if (number > 0 && number != own) syscall(SYS_tgkill, process, number, SIGUSR1);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
  }
  std::atomic<bool> is_over_ = false;
  std::thread thread_;
};

class Interruptions : public ::testing::TestWithParam<Fabrics> {
 protected:
  /// Ranks that are threads are bombarded together, others each by themselves.
  std::vector<std::string> outcomes(const std::function<void(World&)>& body, WorldOptions options = {}) const {
    if (GetParam() == Fabrics::threads) {
      const Bombardment bombardment;
      return outcomes_on(GetParam(), kRanks, body, options);
    }
    const auto bombarded = [&](World& world) {
      const Bombardment bombardment;
      body(world);
    };
    return outcomes_on(GetParam(), kRanks, bombarded, options);
  }
};

// Whole numbers, which sums keep exact.
at::Tensor values_of(int rank, int64_t count) { return at::arange(count, at::kLong).mul(7).add(rank * 3).remainder(1000).to(at::kFloat); }

at::Tensor sum_of_all(int64_t count) {
  auto sum = at::zeros({count}, at::kFloat);
  for (int rank = 0; rank < kRanks; ++rank) sum += values_of(rank, count);
  return sum;
}

void exchange_all_kinds(Group& group, int64_t part) {
  const int64_t count = part * kRanks;
  const int rank = group.rank(), next = (rank + 1) % kRanks, last = (rank + kRanks - 1) % kRanks;
  const auto own = values_of(rank, count), sum = sum_of_all(count);
  const auto reduced = own.clone(), piece = at::empty({part}, at::kFloat), gathered = at::empty({count}, at::kFloat);
  group.all_reduce(reduced);
  require(reduced.equal(sum), "all_reduce of {}", count);
  group.reduce_scatter(piece, own);
  require(piece.equal(sum.narrow(0, rank * part, part)), "reduce_scatter of {}", count);
  group.all_gather(gathered, piece);
  require(gathered.equal(sum), "all_gather of {}", count);
  group.all_to_all(gathered, own);
  for (int from = 0; from < kRanks; ++from)
    require(gathered.narrow(0, from * part, part).equal(values_of(from, count).narrow(0, rank * part, part)), "all_to_all of {}", count);
  // Messages both ways round the ring while a broadcast is under way.
  const auto from_last = at::empty({count}, at::kFloat), from_next = at::empty({count}, at::kFloat), spread = own.clone();
  auto broadcast = group.start_broadcast(spread, 1);
  Work messages[] = {group.start_send(own, next), group.start_receive(from_last, last), group.start_send(own, last),
                     group.start_receive(from_next, next)};
  for (auto& message : messages) message.wait();
  broadcast.wait();
  require(from_last.equal(values_of(last, count)) && from_next.equal(values_of(next, count)), "messages of {}", count);
  require(spread.equal(values_of(1, count)), "broadcast of {}", count);
  require(gather_texts(group, std::string(1000, static_cast<char>('a' + rank)), 0).size() == (rank == 0 ? kRanks : 0u), "texts");
}

TEST_P(Interruptions, change_no_result) {
  const auto ends = outcomes([](World& world) {
    std::vector<int> all(kRanks);
    std::iota(all.begin(), all.end(), 0);
    for (int round = 0; round < 6; ++round) {
      const auto group = world.group("round", all);  // meeting is interrupted too
      // One is late, so that the others sleep in the kernel.
      if (world.rank() == round % kRanks) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (const int64_t part : {1, 1000, 300'001}) exchange_all_kinds(*group, part);
      group->barrier();
    }
    require(interruptions > 100, "the threads of rank {} were interrupted {} times only", world.rank(), interruptions.load());
  });
  EXPECT_THAT(ends, ::testing::Each(""));
}

TEST_P(Interruptions, keep_the_deadline_of_a_rank_that_does_not_come) {
  WorldOptions options;
  options.timeout = std::chrono::seconds(2);
  Departures departures;
  const bool calls_the_roll = GetParam() == Fabrics::gloo;  // which takes 5 s
  const auto ends = outcomes(
      [&](World& world) {
        auto& group = world.everyone();
        group.barrier();
        const auto began = Clock::now();
        const auto waited_s = [&] { return std::chrono::duration<double>(Clock::now() - began).count(); };
        if (world.rank() == 1) return departures.wait_for(2);
        const Departures::Leaving leaving(departures);
        try {
          group.all_reduce(at::ones({1024}, at::kFloat));
        } catch (const std::exception& failure) {
          throw std::runtime_error(fmt::format("after {:.0f} ms: {}", 1e3 * waited_s(), failure.what()));
        }
      },
      options);
  EXPECT_EQ(ends[1], "");
  for (const int survivor : {0, 2}) {
    const auto& end = ends[static_cast<size_t>(survivor)];
    EXPECT_THAT(end, AllOf(HasSubstr("rank 1"), HasSubstr("2 s (resilience.comm_timeout_s)")));
    ASSERT_THAT(end, ::testing::StartsWith("after "));
    EXPECT_THAT(std::stod(end.substr(6)), AllOf(Ge(1990.0), Lt(calls_the_roll ? 9500.0 : 4500.0)));
  }
}

TEST(InterruptedRendezvous, keeps_its_deadline) {
  WorldOptions options;
  options.rendezvous_timeout = std::chrono::seconds(1);
  RankEnvironment environment;
  environment.size = 2;
  environment.address = "127.0.0.1";
  environment.port = free_port();
  environment.launcher = "test";
  const Bombardment bombardment;
  for (const auto& [rank, words] : {std::pair(0, "1 of 2 ranks did not come"), std::pair(1, "Is rank 0 running")}) {
    environment.rank = rank;
    const auto began = Clock::now();
    try {
      World::join(environment, false, options);
      ADD_FAILURE() << "rank " << rank << " joined alone";
    } catch (const std::exception& failure) {
      EXPECT_THAT(std::string(failure.what()), HasSubstr(words));
    }
    EXPECT_THAT(std::chrono::duration<double>(Clock::now() - began).count(), AllOf(Ge(0.9), Lt(10.0))) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(Fabrics, Interruptions, ::testing::Values(Fabrics::threads, Fabrics::shared_memory, Fabrics::gloo),
                         [](const auto& info) { return name_of(info.param); });

}  // namespace
}  // namespace ingot::comm
