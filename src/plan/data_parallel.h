// The best way to train a model by data parallelism alone on the devices that there are: how much ZeRO and recomputation it needs to fit,
// and the microbatch that makes it fastest. Sizing compares shapes of models with it; plan/search.h looks at every other layout.
#pragma once

#include <optional>

#include "plan/communication.h"
#include "plan/device.h"
#include "plan/memory.h"
#include "plan/time.h"

namespace ingot::plan {

struct TrainingJob {
  int64_t batch = 0;  // sequences of a step on all devices; 0: as many for each device as its microbatch
  int64_t seq = 4096;
  optim::OptimizerConfig optimizer;
  int64_t most_at_once = 16;  // sequences of a microbatch, at most
};

struct FittedRun {
  RunShape shape;
  StepMemory memory;
  StepTime time;
  StepCommunication communication;
  double step_s() const { return time.total_s() + communication.total_s(); }
  int64_t tokens_per_step() const { return shape.batch * shape.replicas * shape.seq; }
  double tokens_per_s() const { return static_cast<double>(tokens_per_step()) / step_s(); }
};

/// Used by one thread at a time.
class DataParallel {
 public:
  explicit DataParallel(Device device);

  /// Nothing when no microbatch fits. The model need not be allocated.
  std::optional<FittedRun> best(const models::Model& model, const TrainingJob& job);
  /// What the smallest run needs, one sequence at a time with everything shared and recomputed.
  StepMemory least_memory(const models::Model& model, const TrainingJob& job) const;
  double mfu(const models::Model& model, const FittedRun& run) const;
  const Device& device() const { return device_; }
  const Rates& rates() const { return prices_.rates(); }

 private:
  RunShape shape_of(const TrainingJob& job, int64_t microbatch) const;
  FittedRun judge(const models::Model& model, const RunShape& shape, const StepMemory& memory);

  Device device_;
  std::optional<CommunicationModel> communication_;
  mutable PassPrices prices_;
};

}  // namespace ingot::plan
