// `ingot launch`: starts the ranks of a job on this machine and watches over them.
#include "cli/verb.h"

namespace ingot::cli {

struct LaunchOptions {
  int64_t ranks = 1, nnodes = 1, node_rank = 0, max_restarts = 0, restarts_per_day = 0;
  std::string rendezvous;
  double grace_s = 10, rendezvous_timeout_s = 300, hang_s = -1;
  std::vector<std::string> command;
};

#ifndef INGOT_COMPUTES
void add_launch(Flags& flags) {
  const auto values = std::make_shared<LaunchOptions>();
  auto& o = *values;
  auto& verb = flags.verb("launch", "start the ranks of a job on this machine and watch over them", values);
  verb.add_option("-n,--ranks", o.ranks, "ranks to start on this machine")->check(CLI::Range(int64_t{1}, int64_t{4096}));
  verb.add_option("--nnodes", o.nnodes, "machines; each runs this command")->check(CLI::Range(int64_t{1}, int64_t{65536}));
  verb.add_option("--node-rank", o.node_rank, "which of them this is, from 0")->check(kNotNegative);
  verb.add_option("--rendezvous", o.rendezvous, "HOST:PORT of machine 0, where all meet (one machine: found by itself)");
  verb.add_option("--rendezvous-timeout", o.rendezvous_timeout_s, "seconds to wait for the other machines")->check(kPositive);
  verb.add_option("--max-restarts", o.max_restarts, "how often all ranks are started again after a failure")->check(kNotNegative);
  verb.add_option("--restarts-per-day", o.restarts_per_day, "and how often within 24 hours; 0: as often as --max-restarts allows")
      ->check(kNotNegative);
  verb.add_option(
          "--hang", o.hang_s,
          "seconds without a sign of progress from a training rank that are a hang: it says where, and the job has failed; 0: never "
          "(default: 120, or 20 times the longest silence before)")
      ->check(kNotNegative)
      ->default_str("");
  verb.add_option("--grace", o.grace_s, "seconds from the first failure until the other ranks are killed")->check(kPositive);
  verb.add_option("command", o.command, "-- and the command of a rank, for instance: -- ingot train configs/zaya1-nano.toml");
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include "resilience/launch.h"

namespace ingot::cli {

int run_launch(const Call& call) {
  const auto& o = call.options<LaunchOptions>();
  return resilience::launch({.ranks = o.ranks,
                             .nnodes = o.nnodes,
                             .node_rank = o.node_rank,
                             .max_restarts = o.max_restarts,
                             .restarts_per_day = o.restarts_per_day,
                             .hang_s = o.hang_s,
                             .rendezvous = o.rendezvous,
                             .grace_s = o.grace_s,
                             .rendezvous_timeout_s = o.rendezvous_timeout_s,
                             .command = o.command});
}

}  // namespace ingot::cli
#endif
