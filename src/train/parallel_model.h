// A model in training as one rank sees it: its part of the weights, of the optimizer's state, and the step, laid out over the
// ranks of a mesh. The same for one rank and for many; who shares what with whom is decided here and nowhere else.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/groups.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "parallel/buckets.h"
#include "train/replica_check.h"
#include "train/step.h"

namespace ingot::train {

/// The part of a model that a rank holds. Without groups (to describe it) from the mesh alone.
parallel::Layout layout_of(const mesh::Mesh& mesh, const mesh::ParallelConfig& config, const models::ModelConfig& model,
                           mesh::Groups* groups = nullptr);

/// Memory that a rank comes to share with the others when all are processes of one machine, who exchange through it.
int64_t shared_bytes(const mesh::Mesh& mesh, const mesh::ParallelConfig& config, const parallel::Layout& layout);

/// Layers of each of `pieces` pieces, so that the costliest one costs least; embedding and head count with the ends. Every piece
/// has a layer. Throws ConfigError when there are fewer layers than pieces.
std::vector<tensor::Range> cut_depth(const models::ModelConfig& model, int pieces);

struct TrainingSetup {
  models::ModelConfig model;
  optim::OptimizerConfig optimizer;
  mesh::ParallelConfig parallel;
  std::string precision = "fp32";
  at::Device device = at::kCPU;
  models::Recompute recompute = models::Recompute::none;
  bool offloads_activations = false;
  bool uses_graphs = false;
  int64_t microbatch = 0;
  layers::RoutingLossSettings routing_losses;
  double z_loss = 0, mtp_loss = 0.3;  // coefficients; the second where the model has predictors
  layers::PreferenceSettings preferences;
  uint64_t seed = 1;
  bool is_reproducible = false;  // for any number of data ranks
  bool is_stage = false;         // it stands for a stage of a pipeline that the mesh does not have: for planners
};

class ParallelModel {
 public:
  /// Allocates and initialises. All ranks of `groups` make one, with the same setup; the groups must outlive it. Throws
  /// ConfigError when the mesh does not divide the model.
  ParallelModel(const TrainingSetup& setup, mesh::Groups& groups);

  models::Model& model() { return *model_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  TrainingStep& step() { return *step_; }
  /// Null for one rank whose sums need not be reproducible.
  parallel::Buckets* buckets() { return buckets_.get(); }
  /// Made when first asked for. Null where there are no buckets.
  ReplicaCheck* replica_check();

 private:
  // Of a rank that stands elsewhere on the axes that cut weights.
  struct Other {
    std::unique_ptr<models::Model> model;
    parallel::Buckets::Slices slices;
  };
  comm::Group& sum_group(const layers::Parameter& parameter);
  comm::Group& owners(const layers::Parameter& parameter);
  std::vector<mesh::Axis> axes_of_balance(layers::BalanceOver over) const;
  std::vector<mesh::Axis> axes_of_sum(const layers::Parameter& parameter) const;
  std::vector<mesh::Axis> axes_of_owners(const layers::Parameter& parameter) const;
  /// What the owners have, without asking them.
  std::vector<parallel::OwnedSlice> owned_slices(const layers::Parameter& parameter);
  const Other& other(int rank, const layers::Parameter& parameter);
  int64_t bucket_bytes();

  mesh::ParallelConfig config_;
  mesh::Groups& groups_;
  std::string precision_;
  parallel::Buckets::Options bucket_options_;
  std::unique_ptr<models::Model> model_;
  std::map<int, Other> others_;
  // Owners of a kind of parameter that stand alike on the axis that cuts it: one of their ranks, and which of the owners they are.
  struct Alike {
    int rank = 0;
    std::vector<int> owners;
  };
  std::map<int, std::map<int, Alike>> owners_alike_;  // by kind, and place on the axis
  std::unique_ptr<parallel::Buckets> buckets_;
  std::unique_ptr<optim::Optimizer> optimizer_;
  std::unique_ptr<TrainingStep> step_;
  std::unique_ptr<ReplicaCheck> replica_check_;
};

}  // namespace ingot::train
