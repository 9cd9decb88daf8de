// Judges ways of spreading one run over the devices of a cluster: what every rank holds and does, by the models of plan/.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/forecast.h"
#include "cli/options.h"
#include "plan/run_time.h"
#include "plan/search.h"
#include "plan/simulation.h"
#include "schedule/cluster.h"
#include "train/config.h"

namespace ingot::cli {

/// Where a run is planned for.
struct PlanTarget {
  schedule::Cluster cluster;
  int64_t devices = 1;           // of the cluster that the run may use
  plan::MachineProfile profile;  // of one device: of one rank's threads where it is a CPU
  int64_t program_bytes = 0;     // what a device needs besides the run's tensors
  bool is_here = false;          // this machine
};
/// The profile that --cluster names, with --devices and --memory-gb over it. Throws ProfileError, FileError or UsageError.
schedule::Cluster cluster_of(const PlanOptions& options);
PlanTarget target_of(const schedule::Cluster& cluster, int64_t devices, const std::string& precision);
/// This machine with `ranks` ranks, which share its memory and, without GPUs, its cores. Of one rank it is measured when that was not
/// done before (some seconds); of several, nothing comes back unless ingot bench all measured them.
std::optional<PlanTarget> target_here(const train::RunConfig& config, int64_t ranks);

/// What a plan's command says, for programs and for people.
struct Document {
  nlohmann::ordered_json json;
  std::string text;
};

class Planner {
 public:
  /// Steps are those of the first phase where nothing else is said; memory is that of the phase that needs most.
  Planner(train::RunConfig config, PlanTarget target, plan::Topology topology = {});

  /// Of ranks that share experts, what the busiest gets of the mean; at most as many times as there are such ranks.
  void set_expert_load(double load) { expert_load_ = load; }
  bool is_possible(const plan::Choice& choice);
  /// Throws ConfigError that says why a choice is not possible.
  void check(const plan::Choice& choice);
  int64_t state_bytes(const plan::Choice& choice);
  /// Of the stage that needs most.
  plan::StepMemory memory(const plan::Choice& choice);
  plan::StepMemory memory(const plan::Choice& choice, int stage);
  plan::Judged judge(const plan::Choice& choice, const plan::StepMemory& memory, size_t phase = 0);
  /// The run around such steps, as far as it is known what its parts take; reliability is the caller's. `step_s`: of each phase.
  plan::RunPlan run_plan(const plan::Choice& choice, const std::vector<double>& step_s);
  int64_t saved_bytes() const;
  /// As a run of this layout would be recorded.
  plan::Outcome identity(const plan::Choice& choice);
  /// The same step as units that a simulation moves.
  plan::SimulatedStep simulated(const plan::Choice& choice);

  plan::SearchResult search(int64_t devices, int64_t memory_bytes, const std::function<void(int64_t, int64_t)>& on_mesh);
  /// What the configuration itself says, on so many devices.
  plan::Choice configured(int64_t devices) const;

  const train::RunConfig& config() const { return config_; }
  const std::vector<train::Phase>& phases() const { return phases_; }
  const models::Model& model() const { return *model_; }
  const schedule::Cluster& cluster() const { return messages_.cluster(); }
  const PlanTarget& target() const { return target_; }
  double peak_flops() const { return target_.profile.peak_gemm(config_.train.precision); }
  double flops_per_token() const { return flops_per_token_; }
  int64_t tokens_per_step() const { return phases_.front().tokens_per_step(); }
  double mfu(const plan::Judged& judged) const;

 private:
  mesh::Mesh mesh_of(const plan::Choice& choice, int stage) const;
  plan::RunShape shape(const plan::Choice& choice, int stage, size_t phase = 0);
  const models::Model& part(const plan::Choice& choice, int stage);
  /// First and last stage, and one between: the others are like that one.
  std::vector<int> stages_of(const plan::Choice& choice) const;

  train::RunConfig config_;
  std::vector<train::Phase> phases_;
  PlanTarget target_;
  plan::MessageModel messages_;
  plan::PassPrices prices_;
  std::unique_ptr<models::Model> model_;
  PipelineFacts pipelines_;
  double flops_per_token_ = 0;                   // of the first phase
  std::vector<std::vector<int64_t>> documents_;  // of each phase
  double expert_load_ = plan::kExpectedExpertLoad;
  std::string present_;  // the mesh whose parts are kept
  std::map<int, std::unique_ptr<models::Model>> parts_;
};

}  // namespace ingot::cli
