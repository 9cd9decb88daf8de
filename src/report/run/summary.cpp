#include "report/run/summary.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

namespace ingot::report {
namespace {

double last_finite(const std::vector<double>& values) {
  const auto found = std::find_if(values.rbegin(), values.rend(), [](double value) { return std::isfinite(value); });
  return found == values.rend() ? Summary::kUnknown : *found;
}

double last_positive(const std::vector<double>& values) {
  const auto found = std::find_if(values.rbegin(), values.rend(), [](double value) { return value > 0; });
  return found == values.rend() ? Summary::kUnknown : *found;
}

// The values that are above zero, without the first row after each start: 0 stands for "not measured".
std::vector<double> steady(const Metrics& metrics, Field field) {
  std::vector<double> out;
  const auto& values = metrics[field];
  size_t next_restart = 0;
  for (size_t row = 0; row < values.size(); ++row) {
    bool first = row == 0 && values.size() > 1;
    while (next_restart < metrics.restarts.size() && metrics.restarts[next_restart].row <= row) {
      first = first || metrics.restarts[next_restart].row == row;
      ++next_restart;
    }
    if (!first && values[row] > 0) out.push_back(values[row]);
  }
  return out;
}

void summarise_losses(const Metrics& metrics, Summary& s) {
  const auto& loss = metrics[Field::loss];
  const auto first = std::find_if(loss.begin(), loss.end(), [](double value) { return std::isfinite(value); });
  if (first != loss.end()) s.first_loss = *first;
  s.final_loss = last_finite(loss);
  double sum = 0, count = 0;
  for (size_t row = loss.size() - (loss.size() + 49) / 50; row < loss.size(); ++row) {
    if (!std::isfinite(loss[row])) continue;
    sum += loss[row];
    ++count;
  }
  if (count > 0) s.recent_loss = sum / count;

  const auto& validation = metrics[Field::validation_loss];
  for (size_t row = 0; row < validation.size(); ++row) {
    if (!std::isfinite(validation[row])) continue;
    if (!(s.best_validation <= validation[row])) {
      s.best_validation = validation[row];
      s.best_validation_step = metrics.step[row];
    }
    s.final_validation = validation[row];
  }
}

}  // namespace

double quantile(std::vector<double> values, double fraction) {
  values.erase(std::remove_if(values.begin(), values.end(), [](double value) { return std::isnan(value); }), values.end());
  if (values.empty()) return Summary::kUnknown;
  const double place = fraction * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(below), values.end());
  const double low = values[below];
  if (below + 1 >= values.size()) return low;
  const double high = *std::min_element(values.begin() + static_cast<std::ptrdiff_t>(below) + 1, values.end());
  return low + (high - low) * (place - static_cast<double>(below));
}

Summary summarise(const Metrics& metrics) {
  Summary s;
  if (metrics.step.empty()) return s;
  s.last_step = metrics.step.back();
  s.planned_steps = last_positive(metrics[Field::steps]);
  s.tokens = last_positive(metrics[Field::tokens]);
  summarise_losses(metrics, s);

  auto step_ms = steady(metrics, Field::step_ms);
  s.step_ms = quantile(step_ms, 0.5);
  s.slow_step_ms = quantile(std::move(step_ms), 0.95);
  s.tokens_per_s = quantile(steady(metrics, Field::tokens_per_s), 0.5);
  s.tflops = quantile(steady(metrics, Field::tflops), 0.5);
  s.mfu = quantile(steady(metrics, Field::mfu), 0.5);
  s.predicted_step_ms = last_positive(metrics[Field::predicted_step_ms]);
  s.predicted_memory_bytes = last_positive(metrics[Field::predicted_memory_bytes]);
  s.calibrated_step_ms = last_positive(metrics[Field::calibrated_step_ms]);
  s.calibrated_memory_bytes = last_positive(metrics[Field::calibrated_memory_bytes]);
  for (const double bytes : metrics[Field::memory_peak_bytes]) {
    if (bytes > 0 && !(s.memory_bytes >= bytes)) s.memory_bytes = bytes;
  }
  double total_ms = 0;
  for (const double ms : metrics[Field::step_ms]) {
    if (ms > 0) total_ms += ms;
  }
  if (total_ms > 0) s.training_s = total_ms / 1e3;
  const auto& imbalance = metrics[Field::expert_imbalance];
  s.expert_imbalance = quantile({imbalance.end() - static_cast<std::ptrdiff_t>((imbalance.size() + 9) / 10), imbalance.end()}, 0.5);
  return s;
}

std::vector<SourceSummary> summarise_sources(const Metrics& metrics) {
  const auto& names = metrics.sources;
  const auto& stretches = metrics.source_loss;
  if (names.empty() || stretches.empty()) return {};
  size_t common = names[0].rfind('/') + 1;  // 0 without
  for (const auto& name : names)
    while (common > 0 && name.compare(0, common, names[0], 0, common) != 0) common = common > 1 ? names[0].rfind('/', common - 2) + 1 : 0;
  const double first = stretches.front().first_step, last = stretches.back().last_step, tenth = (last - first) / 10;
  std::vector<SourceSummary> all;
  for (size_t s = 0; s < names.size(); ++s) {
    SourceSummary source{.name = names[s].substr(common)};
    double early = 0, early_tokens = 0, late = 0, late_tokens = 0;
    for (const auto& stretch : stretches) {
      if (s >= stretch.tokens.size()) continue;
      source.tokens += stretch.tokens[s];
      if (stretch.first_step <= first + tenth) early += stretch.nats[s], early_tokens += stretch.tokens[s];
      if (stretch.last_step >= last - tenth) late += stretch.nats[s], late_tokens += stretch.tokens[s];
    }
    if (early_tokens > 0) source.first_loss = early / early_tokens;
    if (late_tokens > 0) source.recent_loss = late / late_tokens;
    all.push_back(std::move(source));
  }
  return all;
}

nlohmann::ordered_json summary_json(const std::vector<RunData>& runs) {
  auto all = nlohmann::ordered_json::array();
  for (const auto& run : runs) {
    const Summary s = summarise(run.metrics);
    nlohmann::ordered_json entry = {{"run", run.name}};
    const auto put = [&](const char* name, double value) {
      entry[name] = std::isfinite(value) ? nlohmann::ordered_json(value) : nlohmann::ordered_json(nullptr);
    };
    put("parameters", run.parameters > 0 ? run.parameters : Summary::kUnknown);
    put("active_parameters", run.active_parameters > 0 ? run.active_parameters : Summary::kUnknown);
    put("last_step", s.last_step);
    put("steps", s.planned_steps);
    put("tokens", s.tokens);
    put("final_loss", s.final_loss);
    put("recent_loss", s.recent_loss);
    put("best_validation_loss", s.best_validation);
    put("best_validation_step", s.best_validation_step);
    put("tokens_per_s", s.tokens_per_s);
    put("step_ms", s.step_ms);
    put("predicted_step_ms", s.predicted_step_ms);
    put("step_error", s.step_error());
    put("calibrated_step_ms", s.calibrated_step_ms);
    put("calibrated_step_error", s.calibrated_step_error());
    put("tflops", s.tflops);
    put("mfu", s.mfu);
    put("memory_peak_bytes", s.memory_bytes);
    put("predicted_memory_bytes", s.predicted_memory_bytes);
    put("memory_error", s.memory_error());
    put("calibrated_memory_bytes", s.calibrated_memory_bytes);
    put("calibrated_memory_error", s.calibrated_memory_error());
    put("training_s", s.training_s);
    put("expert_imbalance", s.expert_imbalance);
    entry["restarts"] = run.metrics.restarts.size();
    entry["skipped_steps"] = run.metrics.lines.skipped;
    entry["unreadable_lines"] = run.metrics.lines.unreadable;
    entry["remarks"] = run.remarks;
    all.push_back(std::move(entry));
  }
  return {{"runs", std::move(all)}};
}

}  // namespace ingot::report
