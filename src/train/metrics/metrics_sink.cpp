#include "train/metrics/metrics_sink.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "train/metrics/step_line.h"

namespace ingot::train {
namespace {

// MLflow takes letters, digits and few signs in the name of a metric.
std::string tag_of(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return c >= 128 || (!std::isalnum(c) && c != '_' && c != '-' && c != '.'); }, '_');
  return name;
}

// "/a/b" of a/b, /a/b and ./a//b; MLflow takes no other slashes. Other signs are written out, so that no two paths have one tag.
std::string tag_of_path(const std::string& path) {
  std::string tag;
  for (const auto& part : std::filesystem::path(path).relative_path()) {
    if (part.empty() || part == ".") continue;
    tag += '/';
    for (const unsigned char c : part.string())
      if (c < 128 && (std::isalnum(c) || c == '-' || c == '_' || (c == '.' && part != ".."))) tag += static_cast<char>(c);
      else tag += fmt::format("_{:02x}", c);
  }
  return tag;
}

std::vector<Scalar> scalars_of(const StepRecord& r) {
  std::vector<Scalar> all = {{"train/loss", r.loss},
                             {"train/grad_norm", r.grad_norm},
                             {"train/lr", r.lr},
                             {"train/tokens", static_cast<double>(r.tokens)},
                             {"speed/step_ms", r.step_ms},
                             {"speed/tokens_per_s", r.tokens_per_s},
                             {"speed/tflops", r.tflops},
                             {"speed/mfu", r.mfu},
                             {"speed/comm_bytes", static_cast<double>(r.comm_bytes)},
                             {"memory/memory_peak_bytes", static_cast<double>(r.memory_peak_bytes)}};
  if (r.predicted_step_ms > 0) all.push_back({"speed/predicted_step_ms", r.predicted_step_ms});
  if (r.predicted_memory_bytes > 0) all.push_back({"memory/predicted_memory_bytes", static_cast<double>(r.predicted_memory_bytes)});
  if (r.calibrated_step_ms > 0) all.push_back({"speed/calibrated_step_ms", r.calibrated_step_ms});
  if (r.validation_loss) all.push_back({"train/validation_loss", *r.validation_loss});
  if (r.expert_load) all.push_back({"experts/max_over_mean", r.expert_load->imbalance()});
  if (r.balance_loss) all.push_back({"experts/balance_loss", *r.balance_loss});
  if (r.router_z_loss) all.push_back({"experts/router_z_loss", *r.router_z_loss});
  if (r.dropped) all.push_back({"experts/dropped", *r.dropped});
  if (r.expert_load && !r.expert_load->entropy.empty()) {
    const auto& entropy = r.expert_load->entropy;
    all.push_back({"experts/router_entropy", std::accumulate(entropy.begin(), entropy.end(), 0.0) / static_cast<double>(entropy.size())});
  }
  if (r.dpo_accuracy) all.push_back({"train/dpo_accuracy", *r.dpo_accuracy});
  if (r.dpo_margin) all.push_back({"train/dpo_margin", *r.dpo_margin});
  if (r.attention_max) all.push_back({"train/attention_max", *r.attention_max});
  if (r.draft_loss) all.push_back({"train/draft_loss", *r.draft_loss});
  if (r.mtp_loss) all.push_back({"train/mtp_loss", *r.mtp_loss});
  for (const auto& evaluation : r.evaluations)
    for (const auto& metric : evaluation.metrics) {
      const auto tag = tag_of(evaluation.task) + "/" + tag_of(metric.name);
      all.push_back({"evaluations/" + tag, metric.value});
      if (metric.error) all.push_back({"evaluations/" + tag + "_stderr", *metric.error});
    }
  // Last, since there may be more of them than a receiver takes.
  for (const auto& source : r.source_loss) all.push_back({"source_loss" + tag_of_path(source.source), source.loss});
  return all;
}

}  // namespace

MetricsSink::MetricsSink(const std::filesystem::path& run_dir, const LogConfig& config, int64_t resumed_step,
                         const std::string& config_toml, const std::string& run_id)
    : run_dir_(run_dir),
      config_(config),
      file_(run_dir / "metrics.jsonl", resumed_step),
      checkpoints_(run_dir / "checkpoints.jsonl", AppendFile::Mode::append),
      after_resume_(resumed_step > 0) {
  try {
    if (config_.tensorboard) tensorboard_.emplace(run_dir_, unix_time_s(), resumed_step);
  } catch (const base::FileError& failure) {
    write_failed(failure.what());
  }
  if (!config_.mlflow.empty())
    mlflow_.emplace(run_dir_, MlflowOptions{config_.mlflow, config_.mlflow_experiment, config_.mlflow_run, config_.mlflow_timeout_s},
                    settings_by_name(config_toml), resumed_step > 0);
  if (!config_.trackio.empty()) {
    const auto name =
        config_.trackio_run.empty() ? std::filesystem::absolute(run_dir_ / ".").parent_path().filename().string() : config_.trackio_run;
    const auto folder = config_.trackio_folder.empty() ? trackio_home() : std::filesystem::path(config_.trackio_folder);
    trackio_.emplace(TrackioOptions{config_.trackio, folder, run_id, name}, settings_by_name(config_toml), resumed_step);
  }
  if (config_.prometheus.empty()) return;
  try {
    prometheus_.emplace(config_.prometheus);
    base::log_info("metrics are served at http://{}/metrics", config_.prometheus);
  } catch (const base::ConfigError& failure) {
    base::log_warning("{}; the run goes on without", failure.what());
  }
}

void MetricsSink::record(StepRecord record) {
  if (record.time_s == 0) record.time_s = unix_time_s();
  record.resumed = record.resumed || (first_ && after_resume_);
  const bool worth_a_line = first_ || record.step % config_.every == 0 || record.step == record.steps || record.validation_loss ||
                            !record.evaluations.empty() || record.skipped;
  if (first_) base::log_info("{}", step_line_legend());
  first_ = false;
  if (worth_a_line) base::log_info("{}", step_line(record));
  for (const auto& evaluation : record.evaluations) base::log_info("{}", evaluation_line(record.step, evaluation));
  try {
    auto line = to_json(record);
    for (auto& saved : std::exchange(new_checkpoints_, {})) line["checkpoints"].push_back(std::move(saved));
    file_.append(line);
    if (config_.tensorboard) write_tensorboard(record);
    if (warned_) base::log_info("the metrics of step {} could be written again", record.step);
    warned_ = false;
  } catch (const base::FileError& failure) {
    write_failed(failure.what());
  }
  if (prometheus_) prometheus_->update(record);
  if (mlflow_) mlflow_->log({record.time_s, record.step, scalars_of(record)});
  if (trackio_) trackio_->log({record.time_s, record.step, scalars_of(record)});
}

void MetricsSink::end(MlflowEnd how) {
  if (mlflow_) mlflow_->end(how);
}

void MetricsSink::record_checkpoint(nlohmann::ordered_json record) {
  try {
    checkpoints_.append(record.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
  } catch (const base::FileError& failure) {
    write_failed(failure.what());
  }
  new_checkpoints_.push_back(std::move(record));
}

void MetricsSink::write_tensorboard(const StepRecord& record) {
  if (!tensorboard_) tensorboard_.emplace(run_dir_, record.time_s, 0);
  tensorboard_->scalars(record.time_s, record.step, scalars_of(record));
  if (!record.expert_load || record.expert_load->tokens.empty()) return;
  // One bar per expert, over all layers: the histogram's axis is the expert's number.
  std::vector<double> counts, edges;
  for (const auto& layer : record.expert_load->tokens) {
    if (counts.size() < layer.size()) counts.resize(layer.size());
    for (size_t expert = 0; expert < layer.size(); ++expert) counts[expert] += static_cast<double>(layer[expert]);
  }
  for (size_t edge = 0; edge <= counts.size(); ++edge) edges.push_back(static_cast<double>(edge));
  if (!counts.empty()) tensorboard_->histogram(record.time_s, record.step, "experts/tokens_by_expert", edges, counts);
}

void MetricsSink::write_failed(const char* what) {
  // Said once per trouble, not once per step.
  if (!warned_) base::log_warning("{}; the run goes on, these metrics are lost", what);
  warned_ = true;
}

}  // namespace ingot::train
