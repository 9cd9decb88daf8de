#include "plan/report/simulation.h"

#include <algorithm>
#include <chrono>

#include "base/text.h"
#include "plan/report/run.h"

namespace ingot::plan {
namespace {

double percentile(const std::vector<double>& sorted, double share) {
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(share * static_cast<double>(sorted.size())))];
}

std::string milliseconds(double seconds) { return fmt::format("{:.2f} ms", seconds * 1e3); }

// Each way to recover over the same month, drawn often enough that the second digit behind the point stays.
void add_policies(const SimulationRequest& o, Document& document) {
  constexpr double kDays = 30;
  constexpr int64_t kDraws = 20;
  const auto& c = o.recovery;
  document.text += fmt::format(
      "\nways to recover, {} times {:g} days: of the failures {:.0f} % take the node for {:g} h; {:g} s where processes stay; a save to "
      "memory stalls "
      "{:g} ms\n  {:<44}{:>10}{:>16}{:>10}{:>12}\n",
      kDraws, kDays, 100 * c.node_loss_share, c.repair_h, c.stay_s, c.memory_stall_s * 1e3, "", "goodput", "spares counted", "waiting",
      "recovering");
  for (const auto& policy : recovery_policies(o.spares)) {
    RecoveryOutcome mean;
    for (int64_t draw = 0; draw < kDraws; ++draw) {
      const auto one = draw_recovery(policy, c, kDays, o.disturbances.seed + static_cast<uint64_t>(draw));
      mean.goodput += one.goodput / kDraws;
      mean.goodput_of_paid += one.goodput_of_paid / kDraws;
      mean.waiting += one.waiting / kDraws;
      mean.recovering += one.recovering / kDraws;
      mean.failures += one.failures;
    }
    document.json["recovery"].push_back({{"policy", policy.name},
                                         {"goodput", mean.goodput},
                                         {"goodput_with_spares_counted", mean.goodput_of_paid},
                                         {"waiting", mean.waiting},
                                         {"recovering", mean.recovering},
                                         {"failures_per_day", static_cast<double>(mean.failures) / kDraws / kDays}});
    document.text += fmt::format("  {:<44}{:>8.2f} %{:>14.2f} %{:>8.2f} %{:>10.2f} %\n", policy.name, 100 * mean.goodput,
                                 100 * mean.goodput_of_paid, 100 * mean.waiting, 100 * mean.recovering);
  }
}

void add_goodput(const SimulationRequest& o, Document& document) {
  const auto& r = o.recovery.reliability;
  if (r.device_mtbf_h == 0) return;
  const double best_s = best_save_interval_s(r), interval_s = o.recovery.save_every_s > 0 ? o.recovery.save_every_s : best_s;
  const double goodput = expected_goodput(r, interval_s);
  document.json["run"] = {{"failures_per_day", r.failures_per_s() * 86400},
                          {"save_every_s", interval_s},
                          {"expected_goodput", goodput},
                          {"best_save_every_s", best_s},
                          {"best_expected_goodput", expected_goodput(r, best_s)}};
  document.text += fmt::format(
      "\nfailures: {:.2f} a day of {} devices, each failing every {:.0f} h; {:.0f} s until the run computes again, a save stalls {:.1f} s\n"
      "goodput: {:.2f} % of the time when it saves every {:.0f} s; most, {:.2f} %, every {:.0f} s\n",
      r.failures_per_s() * 86400, r.devices, r.device_mtbf_h, r.restart_s, r.save_stall_s, 100 * goodput, interval_s,
      100 * expected_goodput(r, best_s), best_s);
  add_policies(o, document);
}

}  // namespace

Document simulation_of(const SimulationRequest& request, Planner& planner, int64_t devices) {
  auto o = request;
  auto disturbances = o.disturbances;
  const auto choice = planner.configured(devices);
  planner.check(choice);
  const auto predicted = planner.judge(choice, {});
  const auto step = planner.simulated(choice);
  const auto undisturbed = simulate_step(step);
  std::vector<double> steps_s;
  std::vector<StageOutcome> stages(step.stages.size());
  StepOutcome outcome;
  const auto begin = std::chrono::steady_clock::now();
  int64_t events = 0;
  for (int64_t i = 0; i < o.steps; ++i) {
    outcome = simulate_step(step, disturbances);
    ++disturbances.seed;
    events += outcome.events;
    if (!outcome.is_complete) break;
    steps_s.push_back(outcome.step_s);
    for (size_t s = 0; s < stages.size(); ++s) {
      stages[s].compute_s += outcome.stages[s].compute_s / static_cast<double>(o.steps);
      stages[s].stages_wait_s += outcome.stages[s].stages_wait_s / static_cast<double>(o.steps);
      stages[s].gradients_wait_s += outcome.stages[s].gradients_wait_s / static_cast<double>(o.steps);
    }
  }
  const double took_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::sort(steps_s.begin(), steps_s.end());

  auto document = header_of(planner, devices);
  auto& json = document.json;
  json.update({{"layout", label(choice)},
               {"ranks", step.ranks()},
               {"units", static_cast<int64_t>(step.stages.size()) * step.replicas},
               {"topology", o.topology},
               {"predicted_ms", predicted.step_s() * 1e3},
               {"undisturbed_ms", undisturbed.step_s * 1e3},
               {"events", events},
               {"simulation_s", took_s}});
  document.text += fmt::format("{}; {} ranks in {} units of {}; topology {}\n\n", label(choice), step.ranks(),
                               static_cast<int64_t>(step.stages.size()) * step.replicas, step.unit_ranks, o.topology);
  document.text += fmt::format("  {:<34}{:>14}\n", "step by formula", milliseconds(predicted.step_s()));
  document.text += fmt::format("  {:<34}{:>14}  {:+.1f} %\n", "simulated, nothing disturbs", milliseconds(undisturbed.step_s),
                               100 * (undisturbed.step_s / predicted.step_s() - 1));
  if (!outcome.is_complete) {
    json["complete"] = false;
    json["halted_ms"] = outcome.step_s * 1e3;
    json["dead_units"] = outcome.dead;
    json["waiting_for_stages"] = outcome.waiting_for_stages;
    json["waiting_for_gradients"] = outcome.waiting_for_gradients;
    document.text += fmt::format(
        "\nthe step does not end: after {} all stand still. {} of {} units dead, {} wait for a neighbour's microbatch, {} for the sums of "
        "gradients, until resilience.comm_timeout_s\n",
        milliseconds(outcome.step_s), outcome.dead, static_cast<int64_t>(step.stages.size()) * step.replicas, outcome.waiting_for_stages,
        outcome.waiting_for_gradients);
  } else {
    double mean_s = 0;
    for (const double s : steps_s) mean_s += s / static_cast<double>(steps_s.size());
    json["complete"] = true;
    json["step_ms"] = {{"mean", mean_s * 1e3},
                       {"p50", percentile(steps_s, 0.5) * 1e3},
                       {"p95", percentile(steps_s, 0.95) * 1e3},
                       {"max", steps_s.back() * 1e3}};
    json["tokens_per_s"] = static_cast<double>(planner.tokens_per_step()) / mean_s;
    document.text += fmt::format("  {:<34}{:>14}  {:+.1f} %; {}\n", "simulated, with what disturbs", milliseconds(mean_s),
                                 100 * (mean_s / undisturbed.step_s - 1),
                                 o.steps > 1 ? fmt::format("p50 {}, p95 {}, longest {} of {} steps", milliseconds(percentile(steps_s, 0.5)),
                                                           milliseconds(percentile(steps_s, 0.95)), milliseconds(steps_s.back()), o.steps)
                                             : "one step");
    document.text +=
        fmt::format("\n  {:<8}{:>14}{:>20}{:>26}{:>12}\n", "stage", "computes", "waits for stages", "for gradients and weights", "idle");
    for (size_t s = 0; s < stages.size(); ++s) {
      const auto& x = stages[s];
      json["stages"].push_back(
          {{"compute_ms", x.compute_s * 1e3}, {"stages_wait_ms", x.stages_wait_s * 1e3}, {"gradients_wait_ms", x.gradients_wait_s * 1e3}});
      document.text += fmt::format("  {:<8}{:>14}{:>20}{:>26}{:>12}\n", s, milliseconds(x.compute_s), milliseconds(x.stages_wait_s),
                                   milliseconds(x.gradients_wait_s),
                                   milliseconds(std::max(0.0, mean_s - x.compute_s - x.stages_wait_s - x.gradients_wait_s)));
    }
  }
  o.recovery.step_s = steps_s.empty() ? undisturbed.step_s : steps_s[steps_s.size() / 2];
  document.text += fmt::format("\n{} events in {:.2f} s\n", events, took_s);
  add_goodput(o, document);
  return document;
}

}  // namespace ingot::plan
