// Evaluation tasks of a run (train.evaluations) as the trainer sees them; eval/run_evaluations.h makes them.
#pragma once

#include <vector>

#include "mesh/groups.h"
#include "train/metrics/step_record.h"
#include "train/parallel_model.h"

namespace ingot::train {

class Evaluations {
 public:
  virtual ~Evaluations() = default;
  /// What each task says of the model as it is, on all ranks. They call it together; weights, gradients and the state of training stay as
  /// they are.
  virtual std::vector<Evaluation> run(ParallelModel& model, mesh::Groups& groups) = 0;
};

}  // namespace ingot::train
