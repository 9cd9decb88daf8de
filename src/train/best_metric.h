// The best value that train.best_metric has had, and how long ago: what keeps checkpoints and ends runs (train.patience).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "train/metrics/step_record.h"

namespace ingot::train {

class BestMetric {
 public:
  /// `metric`: validation_loss, a task of train.evaluations or task/metric. `patience`: values in a row without a better one; 0 = any
  /// number.
  BestMetric(std::string metric, int64_t patience) : metric_(std::move(metric)), patience_(patience) {}

  bool is_of_evaluations() const { return metric_ != "validation_loss"; }
  /// The metric in a record as a score, of which less is better: what is better when it is higher has its sign turned. Nothing where the
  /// record has none.
  std::optional<double> score_in(const StepRecord& record) const;
  /// Whether it is better than all before; NaN never is.
  bool take(double score, int64_t step);

  bool has_lost_patience() const { return patience_ > 0 && since_best_ >= patience_; }
  /// "agreement was no better than at step 20 in 3 evaluations".
  std::string describe() const;

  /// What a checkpoint keeps of it; empty before the first value.
  std::string to_json() const;
  /// That again; what is of another metric is warned about, and nothing is known. Throws CheckpointError for what is no such record.
  void restore(const std::string& json, const std::string& origin);

 private:
  std::string metric_;
  int64_t patience_;
  std::optional<double> best_;
  int64_t best_step_ = 0, since_best_ = 0;
};

}  // namespace ingot::train
