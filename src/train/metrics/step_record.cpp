#include "train/metrics/step_record.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

namespace ingot::train {
namespace {

// Above this many numbers the matrix of tokens per expert is left out of the line, which would otherwise outgrow all else.
constexpr size_t kMaxTokenCounts = 512;

using Json = nlohmann::ordered_json;

class LineBuilder {
 public:
  void add(const char* name, int64_t value) { line_[name] = value; }
  void add(const char* name, double value) {
    if (std::isfinite(value)) {
      line_[name] = value;
    } else {
      line_[name] = nullptr;
      nonfinite_[name] = name_of(value);
    }
  }
  void add(const char* name, Json value) { line_[name] = std::move(value); }
  /// Of each task the number of its items, and of each metric the value and <name>_stderr.
  void add(const std::vector<Evaluation>& evaluations) {
    for (const auto& evaluation : evaluations) {
      auto& own = line_["evaluations"][evaluation.task] = {{"items", evaluation.items}};
      for (const auto& metric : evaluation.metrics) {
        own[metric.name] = std::isfinite(metric.value) ? Json(metric.value) : Json();
        if (!std::isfinite(metric.value)) nonfinite_[evaluation.task + "/" + metric.name] = name_of(metric.value);
        if (metric.error && std::isfinite(*metric.error)) own[metric.name + "_stderr"] = *metric.error;
      }
    }
  }
  /// Of each source {"loss", "tokens"}.
  void add(const std::vector<SourceRecord>& sources) {
    for (const auto& [source, loss, tokens] : sources) {
      line_["source_loss"][source] = {{"loss", std::isfinite(loss) ? Json(loss) : Json()}, {"tokens", tokens}};
      if (!std::isfinite(loss)) nonfinite_["source_loss/" + source] = name_of(loss);
    }
  }
  Json finish() {
    if (!nonfinite_.empty()) line_["nonfinite"] = std::move(nonfinite_);
    return std::move(line_);
  }

 private:
  static const char* name_of(double nonfinite) { return std::isnan(nonfinite) ? "nan" : nonfinite > 0 ? "inf" : "-inf"; }

  Json line_ = Json::object(), nonfinite_ = Json::object();
};

Json load_json(const ExpertLoad& load) {
  Json out = {{"max", load.max}, {"mean", load.mean}, {"layers", load.layers}};
  if (!load.entropy.empty()) out["entropy"] = load.entropy;
  if (!load.dropped.empty()) out["dropped"] = load.dropped;
  size_t counts = 0;
  for (const auto& layer : load.tokens) counts += layer.size();
  if (counts > 0 && counts <= kMaxTokenCounts) out["tokens"] = load.tokens;
  return out;
}

}  // namespace

ExpertLoad expert_load_of(std::vector<std::vector<int64_t>> tokens) {
  ExpertLoad load;
  double total = 0, experts = 0;
  for (const auto& layer : tokens) {
    if (layer.empty()) continue;
    double sum = 0, busiest = 0;
    for (const int64_t count : layer) {
      sum += static_cast<double>(count);
      busiest = std::max(busiest, static_cast<double>(count));
    }
    load.max = std::max(load.max, busiest);
    load.layers.push_back(sum > 0 ? busiest * static_cast<double>(layer.size()) / sum : 1.0);
    total += sum;
    experts += static_cast<double>(layer.size());
  }
  load.mean = experts > 0 ? total / experts : 0;
  load.tokens = std::move(tokens);
  return load;
}

void add_source_loss(StepRecord& record, SourceRecord of_source) {
  auto& all = record.source_loss;
  const auto same = std::find_if(all.begin(), all.end(), [&](const auto& known) { return known.source == of_source.source; });
  if (same == all.end()) return all.push_back(std::move(of_source));
  const auto before = static_cast<double>(same->tokens), more = static_cast<double>(of_source.tokens);
  same->loss = (same->loss * before + of_source.loss * more) / (before + more);
  same->tokens += of_source.tokens;
}

Json to_json(const StepRecord& record) {
  LineBuilder line;
  line.add("step", record.step);
  line.add("steps", record.steps);
  line.add("tokens", record.tokens);
  line.add("loss", record.loss);
  line.add("grad_norm", record.grad_norm);
  line.add("lr", record.lr);
  line.add("step_ms", record.step_ms);
  line.add("tokens_per_s", record.tokens_per_s);
  line.add("flops_per_token", record.flops_per_token);
  line.add("tflops", record.tflops);
  line.add("mfu", record.mfu);
  line.add("memory_peak_bytes", record.memory_peak_bytes);
  line.add("predicted_step_ms", record.predicted_step_ms);
  line.add("predicted_memory_bytes", record.predicted_memory_bytes);
  if (record.calibrated_step_ms > 0) line.add("calibrated_step_ms", record.calibrated_step_ms);
  if (record.calibrated_memory_bytes > 0) line.add("calibrated_memory_bytes", record.calibrated_memory_bytes);
  line.add("comm_bytes", record.comm_bytes);
  line.add("eta_s", record.eta_s);
  line.add("time_s", record.time_s);
  if (record.validation_loss) line.add("validation_loss", *record.validation_loss);
  line.add(record.evaluations);
  line.add(record.source_loss);
  if (record.expert_load) line.add("expert_load", load_json(*record.expert_load));
  if (record.balance_loss) line.add("balance_loss", *record.balance_loss);
  if (record.router_z_loss) line.add("router_z_loss", *record.router_z_loss);
  if (record.dropped) line.add("dropped", *record.dropped);
  if (record.attention_max) line.add("attention_max", *record.attention_max);
  if (record.draft_loss) line.add("draft_loss", *record.draft_loss);
  if (record.mtp_loss) line.add("mtp_loss", *record.mtp_loss);
  if (record.dpo_accuracy) line.add("dpo_accuracy", *record.dpo_accuracy);
  if (record.dpo_margin) line.add("dpo_margin", *record.dpo_margin);
  if (record.skipped) line.add("skipped", Json(true));
  if (record.resumed) line.add("resumed", Json(true));
  return line.finish();
}

}  // namespace ingot::train
