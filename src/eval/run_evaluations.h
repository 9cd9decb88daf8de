// The tasks of train.evaluations: read and checked before the first step, run on the training ranks and their weights.
//
// Each data-parallel rank takes its share of the questions, with the ranks of its tensor and expert axes; there is no second copy of the
// weights. Passes are those of ingot eval: on one rank a metric is, to the bit, what that says of a checkpoint of the step in the same
// dtype.
#pragma once

#include <memory>
#include <vector>

#include "eval/evaluate.h"
#include "mesh/mesh.h"
#include "train/config.h"
#include "train/evaluations.h"

namespace ingot::eval {

class RunEvaluations final : public train::Evaluations {
 public:
  /// Reads the task files and makes all prompts of them, with the run's tokenizer and the context of its model. Throws ConfigError,
  /// DataError, FileError or UsageError for what cannot be evaluated, and ConfigError for a train.best_metric that nobody tells.
  explicit RunEvaluations(const train::RunConfig& config);
  /// Throws ConfigError for axes over which evaluations do not run, naming those over which they do.
  void check_layout(const train::RunConfig& config, const mesh::Mesh& mesh) const;

  std::vector<train::Evaluation> run(train::ParallelModel& model, mesh::Groups& groups) override;

 private:
  void check_best_metric(const std::string& name) const;

  Options options_;
  std::unique_ptr<data::Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<Prepared>> tasks_;
};

/// As they stand around a model that is trained, whose weights are on their way no more.
Ranks ranks_of(train::ParallelModel& model, mesh::Groups& groups);

/// Null where train.evaluations is empty.
std::unique_ptr<RunEvaluations> evaluations_of(const train::RunConfig& config);

}  // namespace ingot::eval
