// `ingot plan`: what a run needs, on this machine or on a cluster that is not available, and how to lay it out there.
#include <ATen/detail/CUDAHooksInterface.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/process.h"
#include "base/progress.h"
#include "base/text.h"
#include "cli/config.h"
#include "cli/plan_simulate.h"
#include "cli/plan_time.h"
#include "cli/planner.h"
#include "cli/verbs.h"
#include "device/device.h"
#include "layers/cost.h"
#include "plan/describe.h"
#include "plan/search.h"

namespace ingot::cli {
namespace {

using base::format_bytes;
using base::format_count;
using Json = nlohmann::ordered_json;

std::string counted(int64_t count, const std::string& noun) { return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s"); }

Json header(const Planner& planner, int64_t devices) {
  return {{"cluster", planner.cluster().name},
          {"devices", devices},
          {"parameters", planner.model().parameters().trained_elements()},
          {"flops_per_token", planner.flops_per_token()},
          {"tokens_per_step", planner.tokens_per_step()},
          {"mfu_convention", layers::kMfuConvention}};
}

std::string header_text(const Planner& planner, int64_t devices) {
  const auto& c = planner.model().config();
  const auto& target = planner.target();
  const auto where = target.is_here
                         ? fmt::format("this machine ({}), {} with {} of {}{}", target.profile.cpu, counted(devices, "rank"),
                                       counted(target.profile.threads, "thread"),
                                       format_bytes(static_cast<int64_t>(target.cluster.memory_bytes)), devices > 1 ? " each" : "")
                         : fmt::format("{} devices of {}, {} each", devices, target.cluster.name,
                                       format_bytes(static_cast<int64_t>(target.cluster.memory_bytes)));
  return fmt::format("{}: {} layers, hidden {}, {} parameters, {} FLOPs per token; {} tokens a step, {}\n{}\n", c.family, c.layers,
                     c.hidden, format_count(static_cast<double>(planner.model().parameters().trained_elements())),
                     format_count(planner.flops_per_token()), planner.tokens_per_step(), planner.config().train.precision, where);
}

int finish(const Options& all, const Json& json, const std::string& text, int status) {
  const auto written = json.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  std::fputs((all.json ? written : text).c_str(), stdout);
  if (!all.plan.output.empty()) {
    base::write_file_atomically(all.plan.output, written);
    base::log_info("wrote {}", all.plan.output);
  }
  return status;
}

int memory(const Options& all, Planner& planner, int64_t devices) {
  const auto choice = planner.configured(devices);
  planner.check(choice);
  auto json = header(planner, devices);
  json["layout"] = plan::label(choice);
  auto text = header_text(planner, devices) + plan::label(choice) + "\n\n";
  text += fmt::format("{:<8}{:>12}{:>12}{:>12}{:>14}{:>12}{:>12}{:>12}\n", "stage", "weights", "gradients", "optimizer", "activations",
                      "update", "program", "peak");
  bool fits = true;
  for (int stage = 0; stage < choice.parallel.pipeline; ++stage) {
    const auto m = planner.memory(choice, stage);
    auto entry = to_json(m);
    entry["stage"] = stage;
    json["stages"].push_back(entry);
    text += fmt::format("{:<8}{:>12}{:>12}{:>12}{:>14}{:>12}{:>12}{:>12}\n", stage, format_bytes(m.weights_bytes),
                        format_bytes(m.gradients_bytes), format_bytes(m.optimizer_bytes), format_bytes(m.forward_backward_bytes),
                        format_bytes(m.update_bytes), format_bytes(m.program_bytes), format_bytes(m.total_bytes()));
    fits = fits && static_cast<double>(m.total_bytes()) <= planner.cluster().memory_bytes;
  }
  if (const auto& p = choice.parallel; p.expert > 1) {
    const auto peak = [&](double load) {
      planner.set_expert_load(load);
      return planner.memory(choice).total_bytes();
    };
    const int64_t even = peak(1), bound = peak(static_cast<double>(p.expert)), expected = peak(all.plan.expert_load);
    json["experts"] = {{"expert_load", all.plan.expert_load}, {"even", even}, {"expected", expected}, {"bound", bound}};
    text += fmt::format(
        "\nrows of {} ranks that share experts: {} when all get as many, {} when the busiest gets {:g} times the mean, {} when it gets "
        "all\n",
        p.expert, format_bytes(even), format_bytes(expected), all.plan.expert_load, format_bytes(bound));
    if (fits && static_cast<double>(bound) > planner.cluster().memory_bytes)
      text += "the last does not fit: a router that fails to balance ends such a run\n";
  }
  json["fits"] = fits;
  if (!fits) text += "does not fit; ingot plan search finds what does\n";
  return finish(all, json, text, fits ? 0 : 3);
}

plan::SearchResult look(Planner& planner, int64_t devices) {
  std::optional<base::ProgressBar> bar;
  auto found = planner.search(devices, static_cast<int64_t>(planner.cluster().memory_bytes), [&](int64_t done, int64_t count) {
    constexpr int64_t kWorthABar = 50;
    if (!bar && count >= kWorthABar) bar.emplace("search", count, base::ProgressUnit::count);
    if (bar) bar->update(done);
  });
  if (bar) bar->finish();
  return found;
}

// A layout that was found, and whose planner judged it.
struct Found {
  const plan::Judged* judged;
  const Planner* planner;
  int64_t all_memory() const { return judged->memory.total_bytes() * judged->choice.ranks(); }
};

// `planners`: of the numbers of devices that are looked at. Of several, less memory means that of all devices.
int search(const Options& all, std::vector<Planner>& planners) {
  std::vector<plan::SearchResult> results;
  for (auto& planner : planners) results.push_back(look(planner, planner.target().devices));
  auto json = header(planners.front(), planners.back().target().devices);
  std::string text;
  std::vector<Found> fitting, pareto;
  for (size_t i = 0; i < planners.size(); ++i) {
    const auto& r = results[i];
    text += header_text(planners[i], planners[i].target().devices);
    text += fmt::format("{}: {} do not divide the model or batch, {} do not fit into memory, {} cannot come near the best; {} judged\n",
                        r.meshes == 1 ? "1 mesh" : fmt::format("{} meshes", r.meshes), r.impossible, r.too_large, r.behind,
                        counted(static_cast<int64_t>(r.fitting.size()), "layout"));
    json["meshes"].push_back({{"devices", planners[i].target().devices},
                              {"all", r.meshes},
                              {"impossible", r.impossible},
                              {"too_large", r.too_large},
                              {"behind", r.behind}});
    for (const auto& j : r.fitting) fitting.push_back({&j, &planners[i]});
    for (const auto& j : r.pareto) pareto.push_back({&j, &planners[i]});
  }
  if (fitting.empty()) {
    for (const auto& r : results)
      text += r.smallest
                  ? fmt::format("nothing fits; {} needs least, {} a device\n", plan::label(*r.smallest), format_bytes(r.smallest_bytes))
                  : "nothing divides; train.batch_size and the devices have too few factors in common\n";
    json["layouts"] = Json::array();
    return finish(all, json, text, 3);
  }
  for (auto* list : {&fitting, &pareto})
    std::stable_sort(list->begin(), list->end(), [](const Found& a, const Found& b) { return a.judged->step_s() < b.judged->step_s(); });
  std::vector<Found> front;
  for (const auto& found : pareto)
    if (front.empty() || found.all_memory() < front.back().all_memory()) front.push_back(found);
  text += fmt::format("\n{:>3}  {:>9}{:>12}{:>8}{:>11}  {:<74}{}\n", "", "step ms", "tokens/s", "MFU", "memory", "layout", "what binds");
  const auto row = [&](const std::string& mark, const Found& found) {
    const auto& [j, planner] = found;
    return fmt::format("{:>3}  {:>9.1f}{:>12}{:>6.1f} %{:>11}  {:<74}{}\n", mark, j->step_s() * 1e3,
                       format_count(static_cast<double>(planner->tokens_per_step()) / j->step_s()), 100 * planner->mfu(*j),
                       format_bytes(j->memory.total_bytes()), plan::label(j->choice),
                       plan::binding(*j, static_cast<int64_t>(planner->cluster().memory_bytes)));
  };
  const auto shown = std::min<size_t>(fitting.size(), static_cast<size_t>(all.plan.top));
  for (size_t i = 0; i < shown; ++i) {
    text += row(std::to_string(i + 1), fitting[i]);
    json["layouts"].push_back(to_json(*fitting[i].judged, *fitting[i].planner));
  }
  text += "\nless memory for more time:\n";
  for (const auto& found : front) {
    text += row("", found);
    json["pareto"].push_back(to_json(*found.judged, *found.planner));
  }
  const auto& best = fitting.front().judged->choice;
  text += "\n" + plan::as_toml(best);
  if (planners.front().target().is_here && best.ranks() > 1)
    text += fmt::format("\nstart it with: ingot launch -n {} -- ingot train …\n", best.ranks());
  json["toml"] = plan::as_toml(best);
  return finish(all, json, text, 0);
}

// Ranks of this machine among which its cores, or its GPUs, can be shared out evenly.
std::vector<int64_t> numbers_of_ranks_here(const PlanOptions& o, const train::RunConfig& config) {
  if (o.devices > 0) return {o.devices};
  const bool is_cpu = device::device_named(config.train.device).is_cpu();
  const int64_t most = is_cpu ? base::usable_cores() : static_cast<int64_t>(at::detail::getCUDAHooks().deviceCount());
  std::vector<int64_t> all;
  for (int64_t ranks = 1; ranks <= most; ++ranks)
    if (most % ranks == 0) all.push_back(ranks);
  return all;
}

// Of the layout that the configuration says.
int one(const Options& all, Planner& planner, int64_t devices) {
  if (all.plan.action == "memory") return memory(all, planner, devices);
  auto document = all.plan.action == "time" ? time_of(all.plan, planner, devices) : simulate(all.plan, planner, devices);
  auto json = header(planner, devices);
  json.update(document.json);
  return finish(all, json, header_text(planner, devices) + document.text, 0);
}

PlanTarget target_here_or_throw(const train::RunConfig& config, int64_t ranks) {
  if (auto target = target_here(config, ranks)) return *target;
  throw base::ProfileError(
      "{} ranks have not been measured side by side on this machine in {}; ingot bench all --ranks {} does that (and --cluster FILE plans "
      "for another machine)",
      ranks, config.train.precision, ranks);
}

int plan_here(const Options& all, const train::RunConfig& config) {
  const auto& o = all.plan;
  if (config.train.precision == "fp64") throw base::ConfigError("runs in fp64 are for tests; their time is not predicted");
  if (o.action != "search") {
    const auto& p = config.parallel;
    const int64_t ranks = o.devices > 0 ? o.devices : std::max<int64_t>(1, p.data) * p.pipeline * p.context * p.tensor * p.tensor_sequence;
    Planner planner(config, target_here_or_throw(config, ranks), topology_of(o));
    planner.set_expert_load(o.expert_load);
    return one(all, planner, ranks);
  }
  std::vector<Planner> planners;
  for (const int64_t ranks : numbers_of_ranks_here(o, config)) {
    if (o.devices > 0) {
      planners.emplace_back(config, target_here_or_throw(config, ranks));
    } else if (auto target = target_here(config, ranks)) {
      planners.emplace_back(config, std::move(*target));
    } else {
      base::log_info("layouts of {} ranks are left out: ingot bench all --ranks {} measures them", ranks, ranks);
    }
  }
  for (auto& planner : planners) planner.set_expert_load(o.expert_load);
  return search(all, planners);
}

}  // namespace

int run_plan(const Options& all) {
  const auto& o = all.plan;
  const auto config = read_config(o.config, o.set);
  if (o.cluster.empty()) {
    if (o.memory_gb > 0) throw base::UsageError("--memory-gb is another device's memory: it goes with --cluster");
    return plan_here(all, config);
  }
  const auto cluster = cluster_of(o);
  const int64_t devices = o.devices > 0 ? o.devices : cluster.devices();
  std::vector<Planner> planners;
  planners.emplace_back(config, target_of(cluster, devices, config.train.precision), topology_of(o));
  planners.front().set_expert_load(o.expert_load);
  return o.action == "search" ? search(all, planners) : one(all, planners.front(), devices);
}

}  // namespace ingot::cli
