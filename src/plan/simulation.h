// One training step of many ranks as events: every stage of a pipeline in every replica computes, waits for its neighbours' messages, and
// sums its gradients with the other replicas while backward goes on. Where nothing disturbs them the result is that of plan/time.h and
// plan/communication.h; what formulas cannot say is what a slow, uneven or dead rank does to the others.
//
// Ranks that work on the same microbatch of the same layers wait for each other in every layer, and so are one unit, as fast as the
// slowest: those of the tensor, sequence and tensor_sequence axes, replicas that share experts, and with ZeRO 3 all replicas.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "parallel/pipeline_schedule.h"

namespace ingot::plan {

/// What a unit does of one stage, in seconds, messages within blocks included.
struct StageWork {
  double forward_s = 0, backward_s = 0;  // of one microbatch through all its layers
  double optimizer_s = 0;
  double sum_gradients_s = 0, gather_weights_s = 0;  // of all its layers, when nothing else goes on
  double handover_s = 0, handover_latency_s = 0;     // of a microbatch to the next stage, or back
  int segments = 1;                                  // parts of its layers whose gradients and weights travel by themselves
};

struct SimulatedStep {
  parallel::PipelineShape pipeline;
  std::vector<StageWork> stages;
  int64_t replicas = 1;             // units of a stage
  int64_t unit_ranks = 1;           // of one unit
  int64_t zero = 0;                 // of the replicas: 2 sums gradients of every microbatch
  bool communication_hides = true;  // behind computation; not where the computing cores move them

  int64_t ranks() const { return static_cast<int64_t>(stages.size()) * replicas * unit_ranks; }
};

/// What is not as it should be. Ranks are numbered stage by stage, in each replica by replica.
struct Disturbances {
  double jitter = 0;                       // standard deviation of the logarithm of every pass of every rank
  double slow_share = 0, slow_factor = 1;  // so many ranks, drawn at random, take so much longer
  struct Slow {
    int64_t rank = 0;
    double factor = 1;
  };
  std::vector<Slow> slow;
  struct Failure {
    int64_t rank = 0;
    double at_s = 0;
  };
  std::vector<Failure> failures;
  uint64_t seed = 0;
};

struct StageOutcome {
  double compute_s = 0, stages_wait_s = 0, gradients_wait_s = 0;  // of a unit, in the mean; the rest of the step it waits for others
};

struct StepOutcome {
  double step_s = 0;  // when the last unit is done; when the last one stood still, if something failed
  bool is_complete = true;
  int64_t events = 0;
  std::vector<StageOutcome> stages;
  // Of a step that does not end: units that wait for a neighbour's message, for the others' gradients, and that are dead.
  int64_t waiting_for_stages = 0, waiting_for_gradients = 0, dead = 0;
};

/// Throws ConfigError for sizes that make no sense, and for ranks that are not there.
StepOutcome simulate_step(const SimulatedStep& step, const Disturbances& disturbances = {});

/// A step whose times are of ranks that share a core with `ranks_per_core` - 1 others and wait for nobody: while a rank waits for another
/// stage, those work, and its own work takes less. At least all work of a core's ranks is needed.
SimulatedStep on_shared_cores(SimulatedStep step, double ranks_per_core);

}  // namespace ingot::plan
