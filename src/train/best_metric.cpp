#include "train/best_metric.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"

namespace ingot::train {

std::optional<double> BestMetric::score_in(const StepRecord& record) const {
  if (!is_of_evaluations()) return record.validation_loss;
  for (const auto& evaluation : record.evaluations)
    for (const auto& metric : evaluation.metrics) {
      const bool is_first = &metric == evaluation.metrics.data();
      if ((is_first && metric_ == evaluation.task) || metric_ == evaluation.task + "/" + metric.name)
        return metric.higher_is_better ? -metric.value : metric.value;
    }
  return std::nullopt;
}

bool BestMetric::take(double score, int64_t step) {
  if (std::isfinite(score) && (!best_ || score < *best_)) {
    best_ = score, best_step_ = step, since_best_ = 0;
    return true;
  }
  ++since_best_;
  return false;
}

std::string BestMetric::describe() const {
  return fmt::format("{} was no better than at step {} in {} {}", metric_, best_step_, since_best_,
                     is_of_evaluations() ? "evaluations" : "validations");
}

std::string BestMetric::to_json() const {
  if (!best_ && since_best_ == 0) return "";
  const nlohmann::json score = best_ ? nlohmann::json(*best_) : nlohmann::json();
  return nlohmann::json{{"metric", metric_}, {"score", score}, {"step", best_step_}, {"since_best", since_best_}}.dump();
}

void BestMetric::restore(const std::string& json, const std::string& origin) {
  if (json.empty()) return;
  const auto parsed = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  try {
    const auto metric = parsed.at("metric").get<std::string>();
    if (metric != metric_) {
      base::log_warning("{} knows the best {}, and train.best_metric is {}: the first value of that is its best", origin, metric, metric_);
      return;
    }
    const auto& score = parsed.at("score");
    best_ = score.is_null() ? std::nullopt : std::optional(score.get<double>());
    best_step_ = parsed.at("step").get<int64_t>();
    since_best_ = parsed.at("since_best").get<int64_t>();
  } catch (const nlohmann::json::exception&) {
    throw base::CheckpointError("{}: the record 'best' is not that of a training run", origin);
  }
}

}  // namespace ingot::train
