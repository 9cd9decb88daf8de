// Runs and the record of predictions: how a run is found again, what earlier ones say of it, and what it adds.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/forecast.h"
#include "cli/version.h"
#include "train/metrics/run_facts.h"

namespace ingot::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFewestSteps = 3;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::string error_text(double predicted, double measured) { return fmt::format("{:+.1f} %", 100 * (predicted / measured - 1)); }

void say(const PhaseForecast& phase, bool has_several) {
  const auto& o = phase.outcome;
  std::vector<std::string> parts;
  if (o.has_step()) {
    parts.push_back(fmt::format("step {:.4g} ms for {:.4g} measured, {}", o.predicted_step_s * 1e3, o.measured_step_s * 1e3,
                                error_text(o.predicted_step_s, o.measured_step_s)));
    if (o.calibrated_step_s > 0)
      parts.back() += fmt::format(" ({} calibrated by {} earlier runs)", error_text(o.calibrated_step_s, o.measured_step_s),
                                  phase.calibration.step.runs);
  }
  if (o.has_memory())
    parts.push_back(fmt::format("peak memory {} for {}, {}", base::format_bytes(o.predicted_memory_bytes),
                                base::format_bytes(o.measured_memory_bytes),
                                error_text(static_cast<double>(o.predicted_memory_bytes), static_cast<double>(o.measured_memory_bytes))));
  if (parts.empty()) return;
  const auto whose = has_several ? fmt::format(" of phase '{}'", phase.phase) : "";
  const auto disturbed = o.foreign_load > 0.1 ? fmt::format("; other programs used {:.0f} % of the machine", 100 * o.foreign_load) : "";
  base::log_info("predictions{}: {}{}", whose, base::join(parts, "; "), disturbed);
}

}  // namespace

plan::Outcome identity_of(const train::RunConfig& config, const mesh::Mesh& mesh, const models::Model& model, const plan::RunShape& shape,
                          const plan::MachineProfile& profile) {
  plan::Outcome o;
  o.version = kVersion;
  o.machine = plan::profile_path("", profile).filename().string();
  o.family = config.model.family;
  o.precision = config.train.precision;
  o.ranks = mesh.world();
  o.layout = mesh.describe();
  if (mesh.size(mesh::Axis::pipeline) > 1) o.layout += ", " + config.parallel.pipeline_schedule;
  if (mesh.size(mesh::Axis::context) > 1) o.layout += ", " + config.parallel.context_method;
  if (shape.replicas > 1) o.layout += fmt::format(", zero {}", shape.zero);
  const auto recompute = shape.recompute == models::Recompute::none        ? "none"
                         : shape.recompute == models::Recompute::selective ? "selective"
                                                                           : "full";
  o.shape = fmt::format("{} parameters, {} layers, hidden {}; {} x {} tokens a rank, {} at a time, recompute {}, {}, {}",
                        model.parameters().trained_elements(), config.model.layers, config.model.hidden, shape.batch, shape.seq,
                        shape.sequences_at_once(), recompute, shape.optimizer.name, config.data.packing);
  return o;
}

plan::Calibration calibrate(plan::Outcome& outcome, double step_s, int64_t memory_bytes, const std::vector<plan::Outcome>& record) {
  auto calibration = plan::calibration_for(outcome, record);
  outcome.predicted_step_s = step_s;
  outcome.predicted_memory_bytes = memory_bytes;
  if (calibration.step) outcome.calibrated_step_s = step_s * calibration.step.median;
  if (calibration.memory)
    outcome.calibrated_memory_bytes = static_cast<int64_t>(static_cast<double>(memory_bytes) * calibration.memory.median);
  return calibration;
}

std::vector<plan::Outcome> known_outcomes() {
  const auto cache = base::environment().cache_folder();
  if (cache.empty()) return {};
  try {
    return plan::read_record(plan::record_path(cache));
  } catch (const base::Error& failure) {
    base::log_warning("{}; predictions are not calibrated", failure.what());
    return {};
  }
}

void keep_outcomes(const RunForecast& forecast, const train::Measured& measured, double foreign_load, const fs::path& run_dir) {
  const auto cache = base::environment().cache_folder();
  auto kept = nlohmann::ordered_json::array();
  for (size_t i = 0; i < forecast.phases.size() && i < measured.step_ms.size(); ++i) {
    const auto& times = measured.step_ms[i];
    if (times.size() < kFewestSteps) continue;
    auto phase = forecast.phases[i];
    auto& o = phase.outcome;
    o.date = base::now_utc();
    o.run = train::run_id(run_dir);
    o.steps = static_cast<int64_t>(times.size());
    o.measured_step_s = median(times) / 1e3;
    o.foreign_load = foreign_load;
    // The peak is that of all phases.
    if (i == 0) o.measured_memory_bytes = measured.peak_memory_bytes;
    else o.predicted_memory_bytes = o.calibrated_memory_bytes = 0;
    say(phase, forecast.phases.size() > 1);
    auto entry = nlohmann::ordered_json::parse(plan::to_json_line(o));
    entry["phase"] = phase.phase;
    kept.push_back(std::move(entry));
    if (cache.empty() || !(o.has_step() || o.has_memory())) continue;
    try {
      plan::append_to_record(plan::record_path(cache), o);
    } catch (const base::Error& failure) {
      base::log_warning("{}; later predictions will not learn from this run", failure.what());
    }
  }
  if (kept.empty()) return;
  try {
    base::write_file_atomically(run_dir / "predictions.json", nlohmann::ordered_json{{"phases", kept}}.dump(1) + "\n");
  } catch (const base::Error& failure) {
    base::log_warning("{}", failure.what());
  }
}

}  // namespace ingot::cli
