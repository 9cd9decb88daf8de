// `ingot plan simulate`: a step of all ranks as events, and what failures leave of a run's time.
#include "cli/plan_flags.h"

namespace ingot::cli {

struct SimulateFlags : TargetFlags {
  std::string topology = "flat";
  int64_t nodes_per_leaf = 0, steps = 1, seed = 0;
  double oversubscription = 1, hop_us = 0, jitter = 0, slow_share = 0, slow_factor = 1;
  std::vector<std::string> slow, fail;
  double save_every_s = 0, save_stall_s = 0.1, memory_stall_ms = 0, stay_s = 1, node_loss_share = 0.2, repair_h = 24;
  int64_t spares = 0;
};

#ifndef INGOT_COMPUTES
void add_plan_simulate(Flags& flags) {
  const auto values = std::make_shared<SimulateFlags>();
  auto& o = *values;
  auto& verb =
      flags.verb("plan", "simulate",
                 "a step of all ranks as events, with slow, uneven and dead ones, and what failures leave of a run's time", values);
  verb.add_option("--topology", o.topology, "of the network: flat, fat_tree or rails (rails only)")
      ->check(CLI::IsMember({"flat", "fat_tree", "rails"}))
      ->capture_default_str();
  verb.add_option("--nodes-per-leaf", o.nodes_per_leaf, "nodes on a leaf switch; 0 = all")->check(CLI::Range(int64_t{0}, int64_t{1} << 20));
  verb.add_option("--oversubscription", o.oversubscription, "of a leaf: bandwidth to its nodes over bandwidth to the spines")
      ->check(CLI::Range(1.0, 1e6))
      ->capture_default_str();
  verb.add_option("--hop-us", o.hop_us, "microseconds of each switch beyond the first")->check(CLI::Range(0.0, 1e6));
  verb.add_option("--jitter", o.jitter, "standard deviation of the logarithm of every pass's time on every rank")
      ->check(CLI::Range(0.0, 2.0));
  verb.add_option("--slow-share", o.slow_share, "share of ranks, drawn at random, that are slower by --slow-factor")
      ->check(CLI::Range(0.0, 1.0));
  verb.add_option("--slow-factor", o.slow_factor, "how many times as long they take")->check(CLI::Range(1.0, 1e6));
  verb.add_option("--slow", o.slow, "RANK=FACTOR: this rank takes so many times as long; may be given several times")
      ->allow_extra_args(false);
  verb.add_option("--fail", o.fail, "RANK@MS: this rank dies so many milliseconds into the step; may be given several times")
      ->allow_extra_args(false);
  verb.add_option("--steps", o.steps, "steps, each with draws of its own")
      ->check(CLI::Range(int64_t{1}, int64_t{100'000}))
      ->capture_default_str();
  verb.add_option("--seed", o.seed, "of the draws")->check(kNotNegative);
  verb.add_option("--save-every-s", o.save_every_s, "between checkpoints; 0 = whatever is best")->check(CLI::Range(0.0, 1e9));
  verb.add_option("--save-stall-s", o.save_stall_s, "that a checkpoint keeps training waiting")
      ->check(CLI::Range(0.0, 1e7))
      ->capture_default_str();
  verb.add_option("--memory-stall-ms", o.memory_stall_ms, "that a checkpoint of every step in memory keeps each step waiting")
      ->check(CLI::Range(0.0, 1e7));
  verb.add_option("--stay-s", o.stay_s, "seconds until a run computes again whose processes stay when one is lost")
      ->check(CLI::Range(0.0, 1e7))
      ->capture_default_str();
  verb.add_option("--spare-nodes", o.spares, "nodes that wait for others to be lost")->check(CLI::Range(int64_t{0}, int64_t{100'000}));
  verb.add_option("--node-loss-share", o.node_loss_share, "of the failures: they take a node away until it is repaired")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  verb.add_option("--repair-hours", o.repair_h, "until such a node is back")->check(CLI::Range(0.0, 1e5))->capture_default_str();
  add_failures(verb, o);
  add_target(verb, o);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <algorithm>

#include "base/error.h"
#include "base/text.h"
#include "cli/show.h"
#include "plan/report/simulation.h"

namespace ingot::cli {
namespace {

using base::UsageError;

// "17=1.5" or "17@350"
std::pair<int64_t, double> rank_and_number(const char* flag, const std::string& text, char between, const char* example) {
  const size_t at = text.find(between);
  const auto rank = base::parse_integer(text.substr(0, at));
  const auto number = at == std::string::npos ? std::nullopt : base::parse_number(text.substr(at + 1));
  if (!rank || !number) throw UsageError("{} {}: write {}", flag, text, example);
  return {*rank, *number};
}

plan::Disturbances disturbances_of(const SimulateFlags& o) {
  plan::Disturbances x{.jitter = o.jitter, .slow_share = o.slow_share, .slow_factor = o.slow_factor, .seed = static_cast<uint64_t>(o.seed)};
  for (const auto& text : o.slow) {
    const auto [rank, factor] = rank_and_number("--slow", text, '=', "RANK=FACTOR, such as 17=1.5");
    x.slow.push_back({rank, factor});
  }
  for (const auto& text : o.fail) {
    const auto [rank, ms] = rank_and_number("--fail", text, '@', "RANK@MS, such as 17@350");
    x.failures.push_back({rank, ms * 1e-3});
  }
  return x;
}

plan::Topology topology_of(const SimulateFlags& o) {
  plan::Topology topology{plan::topology_from_name(o.topology), o.nodes_per_leaf, o.oversubscription, o.hop_us * 1e-6};
  if (topology.shape == plan::Topology::Shape::flat && (o.nodes_per_leaf > 0 || o.oversubscription != 1 || o.hop_us > 0))
    throw UsageError("--nodes-per-leaf, --oversubscription and --hop-us describe leaf switches: they go with --topology fat_tree or rails");
  if (o.oversubscription < 1)
    throw UsageError("--oversubscription {}: it is the bandwidth down over the bandwidth up, 1 at least", o.oversubscription);
  return topology;
}

}  // namespace

int run_plan_simulate(const Call& call) {
  const auto& o = call.options<SimulateFlags>();
  const auto topology = topology_of(o);
  const auto disturbances = disturbances_of(o);
  auto planner = planner_of(o, topology);
  const int64_t devices = planner.target().devices;
  const plan::RecoveryCosts recovery{
      .reliability = {.device_mtbf_h = o.mtbf_h, .devices = devices, .restart_s = o.restart_s, .save_stall_s = o.save_stall_s},
      .nodes = std::max<int64_t>(1, devices / planner.target().cluster.devices_per_node),
      .save_every_s = o.save_every_s,
      .memory_stall_s = o.memory_stall_ms * 1e-3,
      .stay_s = o.stay_s,
      .node_loss_share = o.node_loss_share,
      .repair_h = o.repair_h};
  const auto document = plan::simulation_of({disturbances, o.steps, o.topology, recovery, o.spares}, planner, devices);
  show(call, document.json, document.text, o.output);
  return 0;
}

}  // namespace ingot::cli
#endif
