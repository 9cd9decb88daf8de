// What a run is planned for, as flags of several verbs.
#pragma once

#include "cli/verb.h"

namespace ingot::cli {

struct TargetFlags {
  std::string config, cluster, output;
  std::vector<std::string> set;
  int64_t devices = 0;
  double memory_gb = 0, expert_load = 1.2;
  double mtbf_h = 50000, restart_s = 300;
};

#ifndef INGOT_COMPUTES
inline void add_target(CLI::App& verb, TargetFlags& o) {
  add_config(verb, o.config, o.set);
  verb.add_option("--cluster", o.cluster, "profile of a cluster, such as configs/clusters/h100-64.json (default: this machine)");
  verb.add_option("--devices", o.devices,
                  "how many of its devices, whole nodes; more than it has: as many more nodes (default: all); on this machine: ranks "
                  "(default: what the configuration says; search tries all that share its cores out evenly)")
      ->check(kDevices);
  verb.add_option("--expert-load", o.expert_load,
                  "where ranks share experts: rows of the busiest over the mean; 1 = even, as in most published benchmarks (default 1.2: "
                  "balanced by a router)")
      ->check(CLI::Range(1.0, 1e6));
  verb.add_option("--memory-gb", o.memory_gb, "10^9 bytes of a device, instead of the profile's")->check(kPositive);
  add_output(verb, o.output);
}

inline void add_failures(CLI::App& verb, TargetFlags& o) {
  verb.add_option("--mtbf-hours", o.mtbf_h,
                  "between failures of one device; 0 = none fail (default 50,000: 419 interruptions of 16,384 H100 in 54 days, Llama 3, "
                  "arXiv 2407.21783)")
      ->check(CLI::Range(0.0, 1e12));
  verb.add_option("--restart-s", o.restart_s, "from a failure until the run computes again, noticing it included")
      ->check(CLI::Range(0.0, 1e7))
      ->capture_default_str();
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include "plan/run/planner.h"

namespace ingot::cli {

/// The planner of the layout that the configuration says, on the cluster or on this machine. Throws ProfileError that says how to measure
/// what is missing, ConfigError, UsageError and FileError.
plan::Planner planner_of(const TargetFlags& flags, const plan::Topology& topology = {});
/// The same for one number of this machine's ranks.
plan::Planner planner_here(const TargetFlags& flags, const train::RunConfig& config, int64_t ranks, const plan::Topology& topology = {});

}  // namespace ingot::cli
#endif
