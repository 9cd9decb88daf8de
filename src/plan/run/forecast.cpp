#include "plan/run/forecast.h"

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "comm/rank_environment.h"
#include "device/device.h"
#include "plan/run/out_of_memory.h"
#include "plan/run/program_memory.h"
#include "plan/run/shape.h"
#include "train/parallel_model.h"

namespace ingot::plan {
namespace {

// A plan for many ranks, made by one of them alone, does not know how many of them share a machine: then they do not share cores.
double ranks_per_core(const mesh::Mesh& mesh) {
  const auto ranks = comm::rank_environment(base::environment());
  if (ranks.size < mesh.world()) return 1;
  return std::max(1.0, static_cast<double>(ranks.local_size * at::get_num_threads()) / base::usable_cores());
}

// Of the phases that the configuration covers: their numbers, and plans.
std::vector<std::pair<size_t, PhasePlan>> plans_of(const train::RunConfig& config, PhasePlanner& planner) {
  std::vector<std::pair<size_t, PhasePlan>> plans;
  const auto phases = train::lay_out_phases(config);
  for (size_t i = 0; i < phases.size(); ++i)
    if (config.covers(i)) plans.emplace_back(i, planner.plan(config, phases[i]));
  return plans;
}

}  // namespace

PhasePlanner::PhasePlanner(const train::RunConfig& config, const mesh::Mesh& mesh, const MachineProfile& profile, int64_t program_bytes)
    : model_(models::create_model(config.model)),
      mesh_(mesh),
      profile_(profile),
      program_bytes_(program_bytes),
      maker_(profile, config.train.precision, mesh.world()) {}

PhasePlan PhasePlanner::plan(const train::RunConfig& config, const train::Phase& phase) {
  PhasePlan most{.name = phase.name};
  const auto documents = documents_of(phase);
  const auto device = device::device_named(config.train.device);
  for (const int stage : stages_like_all(config.parallel.pipeline)) {
    const auto at = mesh_of_stage(config.parallel, stage, mesh_.world());
    const auto part = models::create_model(config.model, train::layout_of(at, config.parallel, config.model));
    auto shape = shape_of(config, phase, at, pipelines_);
    shape.documents = documents;
    if (device::is_cpu(device)) shape.ranks_per_core = ranks_per_core(at);
    add_host_memory(config, at, part->layout(), shape);
    const auto plan = maker_.make(*model_, *part, shape, program_bytes_, device::memory_bytes(device));
    if (stage == 0) most.shape = shape, most.plan = plan;
    if (plan.memory.total_bytes() > most.plan.memory.total_bytes()) most.plan.memory = plan.memory;
    if (plan.step_s() > most.plan.step_s()) most.plan.time = plan.time, most.plan.communication = plan.communication;
  }
  return most;
}

RunForecast forecast_of(const train::RunConfig& config, const mesh::Mesh& mesh, const MachineProfile& profile, int64_t program) {
  train::check(config);
  PhasePlanner planner(config, mesh, profile, program);
  const auto phases = plans_of(config, planner);
  RunForecast run;
  auto& forecast = run.numbers;
  const auto& first = phases.front().second.plan;
  if (!first.why_no_time.empty()) base::log_info("no prediction of the step time: {}", first.why_no_time);
  forecast.gemm_flops = first.peak_flops;
  for (const auto& [number, phase] : phases) {
    forecast.step_ms.resize(number + 1, 0);
    forecast.step_ms[number] = phase.plan.step_s() * 1e3;
    forecast.memory_bytes = std::max(forecast.memory_bytes, phase.plan.memory.total_bytes());
  }
  const auto record = known_outcomes();
  for (const auto& [number, phase] : phases) {
    PhaseForecast entry{phase.name, identity_of(config, mesh, planner.model(), phase.shape, profile), {}, config.data.rows != "variable"};
    entry.calibration = calibrate(entry.outcome, phase.plan.step_s(), forecast.memory_bytes, record);
    forecast.calibrated_step_ms.resize(number + 1, 0);
    forecast.calibrated_step_ms[number] = entry.outcome.calibrated_step_s * 1e3;
    forecast.calibrated_memory_bytes = std::max(forecast.calibrated_memory_bytes, entry.outcome.calibrated_memory_bytes);
    run.phases.resize(number + 1);
    run.phases[number] = std::move(entry);
  }
  if (forecast.memory_bytes > first.device_memory_bytes)
    base::log_warning("this run is predicted to need {} of memory and there are {}; ingot train --dry-run says what needs less",
                      base::format_bytes(forecast.memory_bytes), base::format_bytes(first.device_memory_bytes));
  return run;
}

void add(const RunForecast& stretch, RunForecast& run) {
  const auto fill = [](const auto& from, auto& to, const auto& is_there) {
    to.resize(std::max(to.size(), from.size()));
    for (size_t i = 0; i < from.size(); ++i)
      if (is_there(from[i])) to[i] = from[i];
  };
  const auto is_known = [](double value) { return value > 0; };
  fill(stretch.phases, run.phases, [](const PhaseForecast& phase) { return !phase.phase.empty(); });
  fill(stretch.numbers.step_ms, run.numbers.step_ms, is_known);
  fill(stretch.numbers.calibrated_step_ms, run.numbers.calibrated_step_ms, is_known);
  run.numbers.gemm_flops = stretch.numbers.gemm_flops;
  run.numbers.memory_bytes = std::max(run.numbers.memory_bytes, stretch.numbers.memory_bytes);
  run.numbers.calibrated_memory_bytes = std::max(run.numbers.calibrated_memory_bytes, stretch.numbers.calibrated_memory_bytes);
}

std::string dry_run(const train::RunConfig& config, const mesh::Mesh& mesh, const MachineProfile& profile, int64_t program, bool json) {
  train::check(config);
  PhasePlanner planner(config, mesh, profile, program);
  const auto& model = planner.model();
  const auto plans = plans_of(config, planner);
  const auto record = known_outcomes();
  if (json) {
    auto phases = nlohmann::ordered_json::array();
    for (const auto& [number, phase] : plans) {
      nlohmann::ordered_json entry = {{"phase", phase.name}, {"number", number}};
      entry.update(to_json(phase.plan, model, phase.shape, profile));
      auto outcome = identity_of(config, mesh, model, phase.shape, profile);
      const auto calibration = calibrate(outcome, phase.plan.step_s(), phase.plan.memory.total_bytes(), record);
      entry["calibrated"] = to_json(outcome, calibration, last_like(outcome, record));
      phases.push_back(std::move(entry));
    }
    return nlohmann::ordered_json{{"phases", std::move(phases)}}.dump(2) + "\n";
  }
  std::string text;
  bool fits = true;
  for (const auto& [number, phase] : plans) {
    if (config.train.phases.size() > 1) text += "phase '" + phase.name + "'\n";
    text += describe(phase.plan, model, phase.shape, profile);
    auto outcome = identity_of(config, mesh, model, phase.shape, profile);
    const auto calibration = calibrate(outcome, phase.plan.step_s(), phase.plan.memory.total_bytes(), record);
    if (phase.plan.has_time()) text += describe(outcome, calibration, last_like(outcome, record));
    fits = fits && phase.plan.memory.total_bytes() <= phase.plan.device_memory_bytes;
  }
  if (!fits) text += "\n" + settings_that_need_less(config, planner);
  return text;
}

}  // namespace ingot::plan
