// How parameters are updated: a rule says which parameters it takes, which state it keeps for each, and does the step.
//
// Whatever names an optimizer goes through the table in update_rule.cpp: settings, checkpoints, the planner's memory and the
// optimizer itself. docs/adding-an-optimizer.md adds one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/group.h"
#include "device/aten.h"
#include "layers/parameter.h"
#include "optim/config.h"
#include "optim/state_home.h"
#include "parallel/shard.h"

namespace ingot::optim {

/// With whom a rank updates: nothing = alone.
struct Team {
  std::vector<parallel::Shard> shards;  // of every trained parameter that this rank updates a slice of
  std::vector<parallel::Shard> frozen;  // frozen parameters, whole
  comm::Group* everyone = nullptr;      // all ranks of the job, to agree on the norm
  /// All ranks that own elements of a parameter; each exactly once.
  std::function<comm::Group&(const layers::Parameter&)> owners_of;
  parallel::OwnersOf slices_of;  // by the ranks of owners_of; only where they cannot be asked
  bool is_primary = true;        // of all ranks that hold the same buffers (balancing biases)
};

/// The slice of a parameter that this rank updates. Rules find master and state on the parameter's device in StateHome::visit.
struct Slot {
  parallel::Shard shard;
  at::Tensor master;              // [shard.size()]; the value itself unless that is narrower than fp32
  std::vector<at::Tensor> state;  // as the master, one for each of the rule's state names; zero at first
  bool has_master = false;        // apart from the value
  double weight_decay;            // decoupled; 0 for what is not decayed
};

/// What a rule keeps for each matrix beside what has its shape: {"row_second_moment", {rows}}.
struct MatrixState {
  std::string name;
  tensor::Shape shape;  // of one matrix's
};

/// That of all matrices which the rank has a part of, the same on all ranks that own elements of them.
struct MatrixSlot {
  const layers::Parameter* parameter = nullptr;
  int64_t first_matrix = 0;       // of a stack, which may begin before this rank's part
  std::vector<at::Tensor> state;  // [matrices, shape...], fp32 or fp64, one for each of the rule's matrix states; zero at first
  bool is_primary = false;        // this rank saves it
};

/// What a rule works on: the trained parameters that it takes, of all on this rank, and the slices of them that the rank updates.
struct RuleShare {
  layers::ParameterList& parameters;
  std::vector<const layers::Parameter*> taken;
  std::vector<Slot*> slots;
  std::vector<MatrixSlot*> matrices;  // of all taken parameters, if the rule has matrix states
  StateHome& home;                    // of masters and states, but for those of matrices
};

/// What of it one group of ranks owns the elements of.
struct OwnersShare {
  comm::Group* group = nullptr;  // null: every matrix is whole
  std::vector<const layers::Parameter*> taken;
  std::vector<Slot*> slots;
  std::vector<MatrixSlot*> matrices;
};
/// Every rank comes to the same groups in the same order, also one that owns nothing of some.
std::vector<OwnersShare> by_owners(const RuleShare& share, const Team& team);

/// What the slots of one step have in common.
struct Update {
  double lr;
  double gradient_scale;  // gradients count times this: clipping
  int64_t step;           // from 1
};

/// One per optimizer and rank; the rules of a job's ranks make the same calls.
class UpdateRule {
 public:
  virtual ~UpdateRule() = default;
  /// As in profiles and predictions: "adamw".
  virtual std::string_view name() const = 0;
  virtual bool takes(const layers::Parameter& parameter) const = 0;
  /// Whose measured times predictions take for the rule's, "adamw" or "muon"; "dion": its own, by its GEMMs.
  virtual std::string_view predicted_as() const { return "adamw"; }
  /// Of what has the shape of the parameter. "momentum" is in checkpoints as "optimizer.momentum.<parameter>".
  virtual std::vector<std::string> state_names() const = 0;
  /// In checkpoints as "optimizer.<name>.<parameter>", too. Only for rules that take matrices.
  virtual std::vector<MatrixState> matrix_states(const layers::Parameter&) const { return {}; }
  /// Once, before the first update, also on a rank without slots; what it is given outlives the rule. Collective over the team.
  virtual void prepare(const RuleShare& share, const Team& team) = 0;
  /// One step of all slots given to prepare(): state, master, and the value in its compute dtype. Collective over the team.
  virtual void update(const Update& update) = 0;
};

/// Of states that have the shape of a parameter whose master is `master`.
at::ScalarType moments_dtype(const OptimizerConfig& config, at::ScalarType master);

/// How many matrices of a parameter are here, at least in part.
int64_t matrices_here(const layers::Parameter& parameter);

/// [matrices, rows, cols] of a region, as a view of the slice `flat` that it was made for.
at::Tensor matrices_of(const tensor::Region& region, const at::Tensor& flat);

/// The rules of a configuration; a parameter is updated by the first that takes it.
class UpdateRules {
 public:
  explicit UpdateRules(const OptimizerConfig& config);
  UpdateRule& of(const layers::Parameter& parameter) const;
  const std::vector<std::unique_ptr<UpdateRule>>& all() const { return rules_; }
  /// Elements of all states of a trained parameter, of which a rank updates `elements`.
  int64_t state_elements(const layers::Parameter& parameter, int64_t elements) const;

 private:
  std::vector<std::unique_ptr<UpdateRule>> rules_;
};

/// The values of optimizer.name, and what they mean in a line.
std::vector<std::string> optimizer_names();
std::string optimizer_help();

}  // namespace ingot::optim
