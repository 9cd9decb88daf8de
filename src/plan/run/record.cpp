#include "plan/run/record.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/environment.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/text.h"
#include "base/version.h"
#include "plan/run/shape.h"
#include "train/metrics/run_facts.h"

namespace ingot::plan {
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

Outcome identity_of(const train::RunConfig& config, const mesh::Mesh& mesh, const models::Model& model, const RunShape& shape,
                    const MachineProfile& profile) {
  Outcome o;
  o.version = base::program_version();
  o.machine = profile_path("", profile).filename().string();
  o.family = config.model.family;
  o.precision = config.train.precision;
  o.ranks = mesh.world();
  o.layout = mesh.describe();
  if (mesh.size(mesh::Axis::pipeline) > 1) o.layout += ", " + config.parallel.pipeline_schedule;
  if (mesh.size(mesh::Axis::context) > 1) o.layout += ", " + config.parallel.context_method;
  if (shape.replicas > 1) o.layout += fmt::format(", zero {}", shape.zero);
  o.shape = fmt::format("{} parameters, {} layers, hidden {}; {} x {} tokens a rank, {} at a time, recompute {}{}, {}, {}",
                        model.parameters().weight_elements(), config.model.layers, config.model.hidden, shape.batch, shape.seq,
                        shape.sequences_at_once(), recompute_name(shape.recompute), shape.offloads_activations ? " offloaded" : "",
                        shape.optimizer.name, config.data.packing + (config.data.rows == "variable" ? ", variable rows" : ""));
  return o;
}

Calibration calibrate(Outcome& outcome, double step_s, int64_t memory_bytes, const std::vector<Outcome>& record) {
  auto calibration = calibration_for(outcome, record);
  outcome.predicted_step_s = step_s;
  outcome.predicted_memory_bytes = memory_bytes;
  if (calibration.step) outcome.calibrated_step_s = step_s * calibration.step.median;
  if (calibration.memory)
    outcome.calibrated_memory_bytes = static_cast<int64_t>(static_cast<double>(memory_bytes) * calibration.memory.median);
  return calibration;
}

std::vector<Outcome> known_outcomes() {
  const auto cache = base::environment().cache_folder();
  if (cache.empty()) return {};
  try {
    return read_record(record_path(cache));
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
    if (kept.empty()) o.measured_memory_bytes = measured.peak_memory_bytes;
    else o.predicted_memory_bytes = o.calibrated_memory_bytes = 0;
    say(phase, forecast.phases.size() > 1);
    auto entry = nlohmann::ordered_json::parse(to_json_line(o));
    entry["phase"] = phase.phase;
    kept.push_back(std::move(entry));
    if (!phase.has_full_rows) o.measured_step_s = 0;
    if (cache.empty() || !(o.has_step() || o.has_memory())) continue;
    try {
      append_to_record(record_path(cache), o);
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

}  // namespace ingot::plan
