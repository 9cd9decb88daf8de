// What it costs to watch a rank: the calls that Group, Trainer and the launcher make for heartbeats, ledgers, spikes and stragglers, in ns
// of the processor's time each, which what else runs on the machine hardly changes. benchmarks/watching_cost.py puts them beside a step.
//   cmake --build build/release --target watching_bench && build/release/benchmarks/comm/watching_bench
// Lines of JSON: {"what", "per", "ns"}; medians of kRounds. "per" is an operation between ranks, a step, or a look of the launcher at a
// rank.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <ctime>
#include <functional>
#include <vector>

#include "comm/heartbeat.h"
#include "comm/ledger.h"
#include "comm/operation.h"
#include "resilience/straggler.h"
#include "train/spike_watch.h"

using namespace ingot;

namespace {

constexpr int kRounds = 21, kRanks = 8;

double processor_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

void time_of(const char* what, const char* per, int calls, const std::function<void(int64_t)>& call, double share = 1) {
  std::vector<double> rounds;
  int64_t number = 0;
  for (int round = 0; round < kRounds; ++round) {
    const double since = processor_ns();
    for (int i = 0; i < calls; ++i) call(++number);
    rounds.push_back((processor_ns() - since) / calls * share);
  }
  std::sort(rounds.begin(), rounds.end());
  fmt::print("{{\"what\": \"{}\", \"per\": \"{}\", \"ns\": {:.1f}}}\n", what, per, rounds[kRounds / 2]);
}

}  // namespace

int main() {
  comm::HeartbeatBoard board(kRanks);
  std::vector<comm::Heartbeat> hearts;
  for (int rank = 0; rank < kRanks; ++rank) hearts.emplace_back(board.path(), rank);
  comm::Ledger ledger(0);
  ledger.show(comm::Heartbeat(board.path(), 0));
  auto& heart = ledger.heartbeat();

  const std::vector<int> members = {0, 1, 2, 3, 4, 5, 6, 7};
  comm::Operation operation{.kind = comm::Kind::all_reduce};
  operation.input = operation.output = at::zeros({1 << 20});
  ledger.set_step(1);
  // As Group::start_recorded() and Recorded::wait(), without the words, which are made for messages of errors.
  const auto what = fmt::format("{} on axis data (ranks [0, 1, 2, 3, 4, 5, 6, 7]), step 1", comm::describe(operation));
  time_of("flight recorder", "operation", 2000, [&](int64_t) { ledger.finish(ledger.start("data", members, operation)); });
  time_of("heartbeat of a collective", "operation", 2000,
          [&](int64_t number) { heart.set_collective(what, static_cast<uint64_t>(number)); });
  time_of("a wait", "operation", 2000, [&](int64_t) { const comm::Heartbeat::Waiting waiting(heart); });
  time_of("words for it", "operation", 2000, [&](int64_t) {
    return fmt::format("{} on axis data (ranks [0, 1, 2, 3, 4, 5, 6, 7]), step 1", comm::describe(operation)).size();
  });

  time_of("a step begins", "step", 2000, [&](int64_t step) { ledger.set_step(step), heart.add_data(1e-4); });
  train::SpikeWatch spikes(8, 128, 10);
  time_of("spike watch", "step", 500, [&](int64_t step) { spikes.take(4 + 0.01 * static_cast<double>(step * 7919 % 101), 1); });

  for (int64_t step = 1; step <= 100; ++step)
    for (auto& one : hearts) one.set_step(step), one.set_collective(what, 1);
  time_of(
      "look at the heartbeats", "look", 200,
      [&](int64_t) {
        for (int rank = 0; rank < kRanks; ++rank) board.pulse(rank);
      },
      1. / kRanks);
  resilience::StragglerWatch stragglers;
  time_of(
      "look for stragglers", "look", 200,
      [&](int64_t number) {
        std::vector<resilience::RankSteps> steps;
        for (int rank = 0; rank < kRanks; ++rank) {
          auto& of_rank = steps.emplace_back();
          of_rank.rank = rank;
          for (int64_t step = 0; step < comm::HeartbeatBoard::kStepsKept; ++step)
            of_rank.steps.push_back(
                {.step = 32 * number + step, .own_s = 0.1 + 1e-4 * static_cast<double>(rank), .waited_s = 0, .data_s = 0});
        }
        stragglers.look(steps);
      },
      1. / kRanks);
}
