// One training step: microbatches forward and backward, sums over the ranks, gradient norm, update. Follow `run` to see a
// batch become new weights.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/group.h"
#include "data/loader.h"
#include "device/aten.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "parallel/buckets.h"
#include "train/expert_counter.h"
#include "train/graphed_passes.h"
#include "train/pipelined_pass.h"

namespace ingot::train {

class ReplicaCheck;

/// Of a step's batch, the part that a source gave.
struct SourceLoss {
  double loss = 0;      // mean over its targets, nats
  int64_t targets = 0;  // over all ranks; 0: the batch has nothing of it
};

struct StepResult {
  int64_t tokens = 0;                                 // of all ranks, those of padding included
  double loss = 0;                                    // mean over the batch's targets, nats, or over its pairs
  double grad_norm = 0;                               // before clipping
  bool skipped = false;                               // NaN or Inf, or not kept: nothing was updated
  std::string reason;                                 // which tensor was not finite first; empty: all are
  std::vector<std::vector<int64_t>> expert_tokens;    // [layers][experts]; empty without experts
  std::optional<double> balance_loss, router_z_loss;  // means over layers with experts, without coefficients
  std::optional<double> draft_loss;                // mean over the batch's targets, nats, as drafted; loss is the mean of it and the rest
  std::optional<double> mtp_loss;                  // mean over the predictors and the batch's targets, nats
  std::optional<double> dpo_accuracy, dpo_margin;  // share of pairs ordered as chosen; mean of beta h (layers/preference_loss.h)
  std::optional<double> attention_max;             // largest log-sum-exp of a head's scores, with optimizer.qk_clip
  std::vector<double> router_entropy;              // nats, mean over tokens, of each layer with experts
  std::vector<SourceLoss> sources;                 // by Batch::sources; empty unless they are asked for
  std::vector<double> dropped_of_layers;           // of each layer with experts that have a capacity
  std::optional<double> dropped;                   // share of the slots that experts had no room for
};

/// The ranks that train together on one batch; nothing = this one alone.
struct Replicas {
  comm::Group* everyone = nullptr;       // all of them
  comm::Group* targets = nullptr;        // each of them on its own sequences, or its tokens of them
  comm::Group* losses = nullptr;         // over which losses are spread: these and the stages of a pipeline
  comm::Group* tokens = nullptr;         // over which a layer's tokens, and layers, are spread: these and more
  comm::Group* balance = nullptr;        // over which routing losses count tokens: of their sequences, or of a layer
  int64_t data = 1;                      // replicas that have other sequences
  parallel::Buckets* buckets = nullptr;  // of the model's parameters
  comm::Group* stages = nullptr;         // of a pipeline; null without
  parallel::Schedule schedule = parallel::Schedule::one_f_one_b;
};

class TrainingStep {
 public:
  /// Model, optimizer and replicas must outlive it. `microbatch` sequences at a time; 0 = all.
  TrainingStep(models::Model& model, optim::Optimizer& optimizer, models::Recompute recompute, int64_t microbatch,
               const Replicas& replicas = {});

  /// Forward and backward over all microbatches, then one update with the learning rate `lr`. When the loss or a gradient is
  /// not finite, nothing is updated and the result says which tensor was the first. `batch`: whole sequences, the same on all
  /// ranks that share them; the result is about those of all ranks, the same on each. `check` looks at the weights before the update.
  StepResult run(const data::Batch& batch, double lr, ReplicaCheck* check = nullptr);

  /// What a step does outside of its passes: sums over the ranks, gradient norm, update. The gradients are what their memory holds: for
  /// planners, on a counting device.
  StepResult run_without_passes(double lr);
  /// What a pass tells the buckets; null without.
  models::LayerHooks* hooks() { return hooks_.get(); }

  /// Mean loss of a batch without gradients or update; `targets` receives how many targets it had, over all ranks. A rank
  /// may have no sequences.
  double evaluate(const data::Batch& batch, int64_t& targets);

  /// What full recomputation keeps waits in the host's memory. Not of a model on a CPU.
  void offload_activations() { stash_ = std::make_shared<device::HostStash>(model_.device()); }
  /// Passes of microbatches become graphs where they need nothing of other ranks: all on one rank; of replicas those that are neither the
  /// first of a step, which takes weights as they come, nor the last, whose gradients are sent. Of a model on a GPU or the emulated device.
  void use_graphs() { graphs_ = std::make_unique<GraphedPasses>(model_, counter_); }
  /// The predictors of a model that has some learn from the next step on; `coefficient` > 0, of the mean of their losses.
  void train_predictors(double coefficient);
  /// Added to the loss from the next step on. Throws ConfigError where the model has no experts.
  void add_routing_losses(const layers::RoutingLossSettings& settings);
  /// Scales queries and keys back where scores come to be larger (layers/score_clip.h). Throws ConfigError where no layer can be clipped.
  void clip_scores_at(double threshold);
  /// From the next step on batches are of so many sources, whose losses are told apart; 0: they are not, and neither are those of pairs.
  void tell_sources_apart(size_t sources);
  /// Batches of pairs are learned by what their answers are compared, from the next step on.
  void learn_preferences(const layers::PreferenceSettings& settings);
  /// Null without.
  GraphedPasses* graphs() { return graphs_.get(); }
  /// For one forward pass; null without.
  std::shared_ptr<layers::ActivationOffload> offload() const {
    return stash_ ? std::make_shared<layers::ActivationOffload>(stash_) : nullptr;
  }

  /// Called before weights or optimizer state change: whoever still copies them finishes first.
  void on_update(std::function<void()> before) { before_update_ = std::move(before); }

  /// Asked before an update whose loss and gradient norm are finite; false: it is skipped. All ranks answer alike.
  void ask_before_update(std::function<bool(double loss, double grad_norm)> keeps) { keeps_ = std::move(keeps); }

  /// The optimizer's weights were written by someone else (a restored checkpoint): brings them to all replicas.
  void publish_weights();

 private:
  using Tensors = Microbatch;
  /// `trains`: with what predictors need.
  Tensors on_device(const data::Batch& batch, bool trains) const;
  void for_each_microbatch(const Tensors& all, const std::function<void(const Tensors&)>& visit) const;
  std::shared_ptr<const models::FurtherTargets> further_of(const Tensors& tensors) const;
  models::ForwardContext context_for(const Tensors& tensors, models::Observer* observer);
  std::shared_ptr<layers::RoutingLosses> routing_losses();
  models::ForwardContext context_of(std::shared_ptr<layers::Sequences> sequences, models::Observer* observer);
  /// Sum of this rank's losses; leaves the gradients.
  double forward_and_backward(const Tensors& all, double scale);
  /// Of a microbatch; leaves the gradients and gives the loss.
  at::Tensor run_pass(const Tensors& part, double scale, models::ForwardContext context);
  double run_stages(const Tensors& all, double scale, bool forward_only);
  /// Over all ranks, onto the host.
  void collect_expert_counts();
  void collect_routing_losses(StepResult& result) const;
  void collect_further_losses(StepResult& result) const;
  void clip_scores(StepResult& result);
  void report_experts(StepResult& result) const;
  void collect_preferences(StepResult& result, int64_t pairs) const;
  layers::PreferencePairs pairs_on_device(const data::Batch& batch) const;
  layers::WeighLosses weigh_pairs(const layers::PreferencePairs& pairs, bool trains) const;
  /// All that comes after the passes but for the experts' tokens.
  void finish(double loss, double scale, double lr, const Tensors* all, StepResult& result, ReplicaCheck* check = nullptr);
  void update(double lr, double norm, StepResult& result);
  std::string first_nonfinite_activation(const Tensors& tensors);
  bool is_alone() const { return replicas_.targets == nullptr || replicas_.targets->size() == 1; }
  /// Of variable rows: where its microbatches begin, as many on every rank.
  std::vector<int64_t> cut_into_parts(const std::vector<int64_t>& row_begins, int64_t most_of_row) const;
  /// Over the ranks that have parts of it.
  std::vector<double> sum_of_losses(std::vector<double> values) const;
  /// Of each source: the scaled sum of this rank's losses, and its targets. Empty where sources are not told apart.
  std::vector<double> own_losses_of_sources(const Tensors& all, double scale) const;
  /// Of all ranks; `own`: this one's tokens of the batch.
  int64_t count_targets(const Tensors& own) const;
  int64_t count_tokens(const data::Batch& own) const;

  models::Model& model_;
  optim::Optimizer& optimizer_;
  models::Recompute recompute_;
  int64_t microbatch_;
  ExpertCounter counter_;
  layers::RoutingLossSettings routing_loss_settings_;
  std::unique_ptr<layers::RoutingTotals> routing_totals_;  // null without routing losses
  double token_share_ = 0;                                 // of one token in the global batch
  double further_coefficient_ = 0;
  double qk_clip_ = 0;
  std::vector<at::Tensor> largest_scores_;  // by layer; undefined where nothing is clipped
  layers::PreferenceSettings preferences_;
  size_t sources_ = 0;
  at::Tensor draft_loss_;         // fp32 [1], of this rank's tokens; undefined where nothing is drafted
  at::Tensor preference_totals_;  // fp32 [2], as in layers/preference_loss.h; undefined without
  at::Tensor further_total_;      // fp32, of this rank's tokens; undefined where no predictors learn
  Replicas replicas_;
  std::function<void()> before_update_;
  std::function<bool(double loss, double grad_norm)> keeps_;
  std::shared_ptr<device::HostStash> stash_;
  std::unique_ptr<GraphedPasses> graphs_;      // null: passes run as they are
  std::unique_ptr<models::LayerHooks> hooks_;  // that drive the buckets; null without
};

}  // namespace ingot::train
