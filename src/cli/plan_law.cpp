// `ingot plan law`: what the losses of runs say of size and tokens, and how a budget is spent best.
#include "cli/verb.h"

namespace ingot::cli {

struct LawFlags {
  std::vector<std::string> runs;
  std::vector<double> flops;
  std::string parameters = "active", output;
};

#ifndef INGOT_COMPUTES
void add_plan_law(Flags& flags) {
  const auto values = std::make_shared<LawFlags>();
  auto& verb =
      flags.verb("plan", "law", "L(N, D) fitted to finished runs, with intervals, and the size and tokens that suit a budget", values);
  verb.add_option("runs", values->runs, "run directories, or folders of them")->required();
  verb.add_option("--flops", values->flops, "budgets of one run, such as 1e21,1e22 (default: ten times the largest run's)")
      ->delimiter(',')
      ->check(kPositive);
  verb.add_option("--parameters", values->parameters,
                  "what N counts: active = met by a token, embedding and head left out; total = all (default active)")
      ->check(CLI::IsMember({"active", "total"}));
  add_output(verb, values->output);
}
#endif

}  // namespace ingot::cli

#ifdef INGOT_COMPUTES
#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "cli/show.h"
#include "plan/report/law.h"
#include "report/run/run_data.h"

namespace ingot::cli {
namespace {

namespace fs = std::filesystem;

bool is_run(const fs::path& folder) { return fs::exists(folder / "metrics.jsonl"); }

// Those given, and the runs in those given that are none.
std::vector<fs::path> folders_of(const std::vector<std::string>& given) {
  std::vector<fs::path> folders;
  for (const std::string& path : given) {
    if (!fs::is_directory(path)) throw base::DataError("{} is no folder", path);
    if (is_run(path)) {
      folders.emplace_back(path);
      continue;
    }
    std::vector<fs::path> within;
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.is_directory() && is_run(entry.path())) within.push_back(entry.path());
    if (within.empty()) throw base::DataError("{} is no run directory and holds none: it has no metrics.jsonl", path);
    std::sort(within.begin(), within.end());
    folders.insert(folders.end(), within.begin(), within.end());
  }
  return folders;
}

// The last validation, or the mean of the last 2 % of the steps.
double loss_of(const report::Metrics& metrics) {
  const auto& validation = metrics[report::Field::validation_loss];
  for (size_t i = validation.size(); i-- > 0;)
    if (std::isfinite(validation[i])) return validation[i];
  const auto& losses = metrics[report::Field::loss];
  const size_t last = std::max<size_t>(1, losses.size() / 50);
  double sum = 0;
  for (size_t i = losses.size() - std::min(last, losses.size()); i < losses.size(); ++i) sum += losses[i];
  return losses.empty() ? 0 : sum / static_cast<double>(std::min(last, losses.size()));
}

}  // namespace

int run_plan_law(const Call& call) {
  const auto& o = call.options<LawFlags>();
  std::vector<plan::LawPoint> points;
  for (const auto& run : report::read_runs(folders_of(o.runs))) {
    const auto& m = run.metrics;
    if (m.step.empty()) {
      base::log_warning("{} has no steps and does not count", run.folder.string());
      continue;
    }
    const double steps = m[report::Field::steps].back();
    if (steps > m.step.back()) base::log_warning("{} stands at step {} of {}: it counts as it is", run.name, m.step.back(), steps);
    points.push_back({.run = run.name,
                      .parameters = o.parameters == "total" ? run.parameters : run.active_parameters,
                      .tokens = m[report::Field::tokens].back(),
                      .loss = loss_of(m),
                      .flops_per_token = m[report::Field::flops_per_token].back()});
  }
  const auto document = plan::law_document(points, plan::fit_law(points), o.flops);
  show(call, document.json, document.text, o.output);
  return 0;
}

}  // namespace ingot::cli
#endif
