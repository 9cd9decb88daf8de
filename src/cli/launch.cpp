// `ingot launch`: starts the ranks of a job on this machine and watches over them.
#include "cli/verb.h"

namespace ingot::cli {

struct LaunchOptions {
  int64_t ranks = 1, node_rank = -1, max_restarts = 0, restarts_per_day = 0, spares = 0;
  std::string nodes = "1", rendezvous, address;
  std::string page, on_event, exclusion_list;
  bool check_node = false;
  double grace_s = 10, rendezvous_timeout_s = 300, lease_s = 3, nodes_patience_s = 30, hang_s = -1;
  std::vector<std::string> command;
};

namespace {

struct NodeRange {
  int64_t least = 0, wanted = 0;  // 0: not a range
};

NodeRange node_range_of(const std::string& text) {
  const auto colon = text.find(':');
  const auto number = [](const std::string& digits) {
    const bool is_number = !digits.empty() && digits.size() < 6 && digits.find_first_not_of("0123456789") == std::string::npos;
    return is_number ? std::stoll(digits) : 0;
  };
  NodeRange range;
  range.least = number(text.substr(0, colon));
  range.wanted = colon == std::string::npos ? range.least : number(text.substr(colon + 1));
  return range;
}

}  // namespace

#ifndef INGOT_COMPUTES
void add_launch(Flags& flags) {
  const CLI::Validator is_node_range(
      [](const std::string& text) {
        const auto range = node_range_of(text);
        const bool is_range = range.least >= 1 && range.wanted >= range.least;
        return is_range ? std::string() : "write N or LEAST:WANTED, for instance 8 or 4:8, not " + text;
      },
      "N or LEAST:WANTED");
  const auto values = std::make_shared<LaunchOptions>();
  auto& o = *values;
  auto& verb = flags.verb("launch", "start the ranks of a job on this machine and watch over them", values);
  verb.add_option("-n,--ranks", o.ranks, "ranks to start on this machine")->check(CLI::Range(int64_t{1}, int64_t{4096}));
  verb.add_option(
          "--nodes", o.nodes,
          "machines, each runs this command: N, or LEAST:WANTED, which goes on with those that are left and takes in those that come")
      ->check(is_node_range);
  verb.add_option("--node-rank", o.node_rank, "which of them this is, from 0 (with a folder: as they come)")->check(kNotNegative);
  verb.add_option(
      "--rendezvous", o.rendezvous,
      "where they meet: a folder that all of them share, or HOST:PORT of machine 0, with which all end (one machine: needs none)");
  verb.add_option("--address", o.address, "where the others reach this machine (default: its name)");
  verb.add_option("--rendezvous-timeout", o.rendezvous_timeout_s, "seconds to wait for the least number of machines")->check(kPositive);
  verb.add_option("--nodes-patience", o.nodes_patience_s, "seconds that a job which begins waits for more than the least")
      ->check(kNotNegative);
  verb.add_option("--lease", o.lease_s, "seconds without a sign of life until a machine is lost")->check(CLI::Range(0.5, 3600.0));
  verb.add_option("--max-restarts", o.max_restarts, "how often all ranks are started again after a failure")->check(kNotNegative);
  verb.add_option("--spares", o.spares,
                  "processes of each machine that wait, the program loaded, to take the place of a training rank that fails")
      ->check(CLI::Range(int64_t{0}, int64_t{64}));
  verb.add_option("--restarts-per-day", o.restarts_per_day, "and how often within 24 hours; 0: as often as --max-restarts allows")
      ->check(kNotNegative);
  verb.add_option(
          "--hang", o.hang_s,
          "seconds without a sign of progress from a training rank that are a hang: it says where, and the job has failed; 0: never "
          "(default: 120, or 20 times the longest silence before)")
      ->check(kNotNegative)
      ->default_str("");
  verb.add_option("--page", o.page,
                  "HOST:PORT where GET /metrics says what each rank does, for Prometheus, and POST /drain saves and ends");
  verb.add_option("--on-event", o.on_event, "command for sh, run for each event of the run with its JSON in $INGOT_EVENT");
  verb.add_flag("--check-node", o.check_node,
                "this machine must pass ingot doctor --fit before it takes part, and again when a rank of it crashes or hangs");
  verb.add_option("--exclusion-list", o.exclusion_list,
                  "file of machines to do without; one that is not fit adds itself (default: `excluded` in a rendezvous folder)");
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
  const auto nodes = node_range_of(o.nodes);
  return resilience::launch({.ranks = o.ranks,
                             .nodes_least = nodes.least,
                             .nodes_wanted = nodes.wanted,
                             .node_rank = o.node_rank,
                             .max_restarts = o.max_restarts,
                             .restarts_per_day = o.restarts_per_day,
                             .spares = o.spares,
                             .hang_s = o.hang_s,
                             .rendezvous = o.rendezvous,
                             .address = o.address,
                             .lease_s = o.lease_s,
                             .nodes_patience_s = o.nodes_patience_s,
                             .page = o.page,
                             .on_event = o.on_event,
                             .check_node = o.check_node,
                             .exclusion_list = o.exclusion_list,
                             .grace_s = o.grace_s,
                             .rendezvous_timeout_s = o.rendezvous_timeout_s,
                             .command = o.command});
}

}  // namespace ingot::cli
#endif
