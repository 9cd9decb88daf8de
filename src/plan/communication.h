// What communication adds to the time of a training step on a cluster: within blocks in the order in which the program starts it and waits
// for it (priced_pass.h), gradients and weights by what of them backward and forward can hide, stages and what the update sends in full.
// Where the cores that compute move the bytes, too, nothing hides; elsewhere what computes beside communication takes longer by
// kOverlapSlowdown.
#pragma once

#include "plan/run_shape.h"
#include "plan/time.h"
#include "plan/topology.h"
#include "schedule/cluster.h"

namespace ingot::plan {

/// How much longer computation takes while messages travel, which use some of its multiprocessors and memory bandwidth: 18.9 % on average
/// over GPTs and LLaMAs on 4 A100, H100, MI210 and MI250 (arXiv 2507.03114, abstract).
inline constexpr double kOverlapSlowdown = 0.189;

/// Seconds that messages add to a step of a rank, which stands still for them or is slowed down by them, by what they carry.
struct StepCommunication {
  double blocks_s = 0;     // of tensor, sequence and tensor_sequence axes
  double gradients_s = 0;  // their sums, and the weights that ZeRO gathers
  double experts_s = 0;
  double stages_s = 0;
  double update_s = 0;  // what the optimizer sends of matrices that several ranks own
  double total_s() const { return blocks_s + gradients_s + experts_s + stages_s + update_s; }
};

/// Of `part`, what one rank holds; `compute`: of the same run, in which gradients and weights can hide. Ranks lie as mesh/mesh.h numbers
/// them.
class CommunicationModel {
 public:
  explicit CommunicationModel(schedule::Cluster cluster, Topology topology = {}) : cluster_(std::move(cluster)), topology_(topology) {}
  StepCommunication predict(const models::Model& part, const RunShape& run, const StepTime& compute, PassPrices& prices) const;
  const schedule::Cluster& cluster() const { return cluster_; }
  /// For prices that predict() reads.
  Transport transport() const;

  /// Seconds that a rank's gradients and weights travel once, whatever hides it; weights that are gathered once more for backward; and what
  /// the update sends.
  struct Traffic {
    double sum_gradients_s = 0, gather_weights_s = 0, gather_again_s = 0, update_s = 0;
  };
  Traffic traffic_of(const models::Model& part, const RunShape& run, PassTraces& traces) const;
  /// Seconds of `compute` that gradients and weights which hide behind it add to it; part of what predict() gives.
  double contention_s(const models::Model& part, const RunShape& run, const StepTime& compute, PassTraces& traces) const;
  /// A microbatch's activations to the next stage.
  schedule::Duration handover(const models::Model& part, const RunShape& run) const;

 private:
  /// Of all that gradients and weights of a step take, what shows and what hides.
  struct Hiding {
    double exposed_s = 0, hidden_s = 0;
  };
  Hiding gradients(const Traffic& traffic, const models::Model& part, const RunShape& run, const StepTime& compute) const;
  double stages_s(const models::Model& part, const RunShape& run, double microbatch_s) const;

  double duration(const UpdateTrace::Communications& communications) const;

  schedule::Cluster cluster_;
  Topology topology_;
};

/// On the machine that the profile is of. Nothing for one rank; throws ProfileError when the profile has no collectives.
StepCommunication predict_communication(const models::Model& part, const RunShape& run, const MachineProfile& profile,
                                        const StepTime& compute);

}  // namespace ingot::plan
