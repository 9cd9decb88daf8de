// Judges ways of spreading one run over the devices of a cluster: what every rank holds and does, by the models of plan/.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "layers/dtype.h"
#include "plan/profile.h"
#include "plan/run/record.h"
#include "plan/run/shape.h"
#include "plan/run_time.h"
#include "plan/search.h"
#include "plan/simulation.h"
#include "schedule/cluster.h"
#include "train/config.h"

namespace ingot::plan {

/// Where a run is planned for.
struct PlanTarget {
  schedule::Cluster cluster;
  int64_t devices = 1;        // of the cluster that the run may use
  MachineProfile profile;     // of one device: of one rank's threads where it is a CPU
  int64_t program_bytes = 0;  // what a device needs besides the run's tensors
  bool is_here = false;       // this machine
};
/// The profile in `file` (--cluster) with --devices and --memory-gb over it, where they are not 0. More devices than it has: as many more
/// nodes. Throws ProfileError, FileError or UsageError.
schedule::Cluster cluster_with(const std::string& file, int64_t devices, double memory_gb);
PlanTarget target_of(const schedule::Cluster& cluster, int64_t devices, const std::string& precision);

class Planner {
 public:
  /// Steps are those of the first phase where nothing else is said; memory is that of the phase that needs most.
  Planner(train::RunConfig config, PlanTarget target, Topology topology = {});

  /// Of ranks that share experts, what the busiest gets of the mean; at most as many times as there are such ranks.
  void set_expert_load(double load) { expert_load_ = load; }
  bool is_possible(const Choice& choice);
  /// Throws ConfigError that says why a choice is not possible.
  void check(const Choice& choice);
  /// Lower bounds that need no trace of the choice's update: what the search asks first.
  double least_s(const Choice& choice);
  int64_t least_bytes(const Choice& choice);
  /// Of the stage that needs most.
  StepMemory memory(const Choice& choice);
  StepMemory memory(const Choice& choice, int stage);
  Judged judge(const Choice& choice, const StepMemory& memory, size_t phase = 0);
  /// The run around such steps, as far as it is known what its parts take; reliability is the caller's. `step_s`: of each phase.
  RunPlan run_plan(const Choice& choice, const std::vector<double>& step_s);
  int64_t saved_bytes();
  /// As a run of this layout would be recorded.
  Outcome identity(const Choice& choice);
  /// The same step as units that a simulation moves.
  SimulatedStep simulated(const Choice& choice);

  SearchResult search(int64_t devices, int64_t memory_bytes, const std::function<void(int64_t, int64_t)>& on_mesh);
  /// What the configuration itself says, on so many devices.
  Choice configured(int64_t devices) const;

  const train::RunConfig& config() const { return config_; }
  const std::vector<train::Phase>& phases() const { return phases_; }
  const models::Model& model() const { return *model_; }
  const schedule::Cluster& cluster() const { return communication_.cluster(); }
  const PlanTarget& target() const { return target_; }
  double peak_flops() const { return target_.profile.peak_gemm(layers::dtype_name(config_.train.precision)); }
  double flops_per_token() const { return flops_per_token_; }
  int64_t tokens_per_step() const { return phases_.front().tokens_per_step(); }
  double mfu(const Judged& judged) const;

 private:
  RunShape shape(const Choice& choice, int stage, size_t phase = 0);
  const models::Model& part(const Choice& choice, int stage);

  train::RunConfig config_;
  std::vector<train::Phase> phases_;
  PlanTarget target_;
  CommunicationModel communication_;
  PassPrices prices_;
  std::unique_ptr<models::Model> model_;
  PipelineFacts pipelines_;
  double flops_per_token_ = 0;                   // of the first phase
  std::vector<std::vector<int64_t>> documents_;  // of each phase
  double expert_load_ = kExpectedExpertLoad;
  std::string present_;  // the mesh whose parts are kept
  std::map<int, std::unique_ptr<models::Model>> parts_;
};

}  // namespace ingot::plan
