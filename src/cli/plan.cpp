// `ingot plan memory|time|search`: what a run needs, on this machine or on a cluster that is not available, and how to lay it out there.
#include "cli/plan_flags.h"

namespace ingot::cli {

struct PlanFlags : TargetFlags {
  int64_t top = 10;
};

#ifndef INGOT_COMPUTES
void add_plan(Flags& flags) {
  const auto values = std::make_shared<PlanFlags>();
  auto& o = *values;
  flags.group(
      "plan",
      "predict a run, here or on a cluster that is not available: memory, time, the layouts that take least of it, or every rank's step");
  auto& memory = flags.verb("plan", "memory", "of every pipeline stage's ranks, by category", values);
  auto& time = flags.verb("plan", "time", "of a step, by kind of work and of communication", values);
  auto& search = flags.verb("plan", "search", "the ways of spreading a run over devices that take least time, and what each needs", values);
  search.add_option("--top", o.top, "how many layouts to show")->check(CLI::Range(int64_t{1}, int64_t{1000}))->capture_default_str();
  add_failures(time, o);
  for (auto* verb : {&memory, &time, &search}) add_target(*verb, o);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <ATen/detail/CUDAHooksInterface.h>

#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "bench/planning.h"
#include "cli/show.h"
#include "device/device.h"
#include "layers/dtype.h"
#include "plan/report/run.h"
#include "plan/report/time.h"
#include "plan/run/ranks.h"

namespace ingot::cli {
namespace {

plan::SearchResult look(plan::Planner& planner, int64_t devices) {
  std::optional<base::ProgressBar> bar;
  auto found = planner.search(devices, static_cast<int64_t>(planner.cluster().memory_bytes), [&](int64_t done, int64_t count) {
    constexpr int64_t kWorthABar = 50;
    if (!bar && count >= kWorthABar) bar.emplace("search", count, base::ProgressUnit::count);
    if (bar) bar->update(done);
  });
  if (bar) bar->finish();
  return found;
}

// Ranks of this machine among which its cores, or its GPUs, can be shared out evenly.
std::vector<int64_t> numbers_of_ranks_here(const TargetFlags& o, const train::RunConfig& config) {
  if (o.devices > 0) return {o.devices};
  const bool is_cpu = device::device_named(config.train.device).is_cpu();
  const int64_t most = is_cpu ? base::usable_cores() : static_cast<int64_t>(at::detail::getCUDAHooks().deviceCount());
  std::vector<int64_t> all;
  for (int64_t ranks = 1; ranks <= most; ++ranks)
    if (most % ranks == 0) all.push_back(ranks);
  return all;
}

plan::Planner planner_for(const TargetFlags& o, const train::RunConfig& config, plan::PlanTarget target, const plan::Topology& topology) {
  plan::Planner planner(config, std::move(target), topology);
  planner.set_expert_load(o.expert_load);
  return planner;
}

void check_here(const TargetFlags& o, const train::RunConfig& config) {
  if (o.memory_gb > 0) throw base::UsageError("--memory-gb is another device's memory: it goes with --cluster");
  if (config.train.precision == "fp64") throw base::ConfigError("runs in fp64 are for tests; their time is not predicted");
}

// One for each number of devices that is looked at.
std::vector<plan::Planner> planners_of(const TargetFlags& o) {
  std::vector<plan::Planner> planners;
  if (!o.cluster.empty()) {
    planners.push_back(planner_of(o));
    return planners;
  }
  const auto config = train::read_config(o.config, o.set);
  check_here(o, config);
  for (const int64_t ranks : numbers_of_ranks_here(o, config)) {
    if (o.devices > 0) planners.push_back(planner_here(o, config, ranks));
    else if (auto target = bench::target_here(config, ranks)) planners.push_back(planner_for(o, config, std::move(*target), {}));
    else base::log_info("layouts of {} ranks are left out: ingot bench all --ranks {} measures them", ranks, ranks);
  }
  return planners;
}

plan::Document search(const PlanFlags& o) {
  auto planners = planners_of(o);
  std::vector<plan::SearchResult> results;
  for (auto& planner : planners) results.push_back(look(planner, planner.target().devices));
  return plan::search_of(planners, results, o.top);
}

plan::Document predict(const std::string& action, const PlanFlags& o) {
  if (action == "search") return search(o);
  auto planner = planner_of(o);
  const int64_t devices = planner.target().devices;
  if (action == "memory") return plan::memory_of(planner, devices, o.expert_load);
  return plan::time_of(planner, devices, {o.mtbf_h, o.restart_s}, plan::known_outcomes());
}

}  // namespace

plan::Planner planner_here(const TargetFlags& o, const train::RunConfig& config, int64_t ranks, const plan::Topology& topology) {
  auto target = bench::target_here(config, ranks);
  if (!target)
    throw base::ProfileError(
        "{} ranks have not been measured side by side on this machine in {}; ingot bench all --ranks {} does that (and --cluster FILE "
        "plans "
        "for another machine)",
        ranks, config.train.precision, ranks);
  return planner_for(o, config, std::move(*target), topology);
}

plan::Planner planner_of(const TargetFlags& o, const plan::Topology& topology) {
  const auto config = train::read_config(o.config, o.set);
  if (o.cluster.empty()) {
    check_here(o, config);
    return planner_here(o, config, o.devices > 0 ? o.devices : plan::configured_ranks(config.parallel), topology);
  }
  const auto cluster = plan::cluster_with(o.cluster, o.devices, o.memory_gb);
  const int64_t devices = o.devices > 0 ? o.devices : cluster.devices();
  return planner_for(o, config, plan::target_of(cluster, devices, layers::dtype_name(config.train.precision)), topology);
}

int run_plan(const Call& call) {
  const auto& o = call.options<PlanFlags>();
  const auto document = predict(call.action, o);
  show(call, document.json, document.text, o.output);
  return document.fits ? 0 : 3;
}

}  // namespace ingot::cli
#endif
