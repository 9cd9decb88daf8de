#include "train/step.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "base/work_scope.h"
#include "device/device.h"
#include "device/virtual_device.h"
#include "kernels/differentiable.h"
#include "train/loss_sum.h"
#include "train/replica_check.h"
#include "train/variable_rows.h"

namespace ingot::train {
namespace {

at::Tensor narrow_rows(const at::Tensor& x, int64_t from, int64_t count) { return x.defined() ? x.narrow(0, from, count) : x; }

// A sequence without targets.
data::Batch idle_batch(int64_t tokens) {
  const auto n = static_cast<size_t>(tokens);
  return {.batch = 1,
          .seq = tokens,
          .inputs = std::vector<int32_t>(n, 0),
          .targets = std::vector<int32_t>(n, -100),
          .document_starts = std::vector<int32_t>(n, 0)};
}

// As the model gets it: variable rows are one.
std::array<int64_t, 2> shape_of(const data::Batch& batch) {
  if (batch.row_begins.empty()) return {batch.batch, batch.seq};
  return {1, batch.row_begins.back()};
}

// What the predictor number `further` (from 1) reads and predicts where the next token of every token is known: [batch, seq] each.
std::pair<std::vector<int32_t>, std::vector<int32_t>> further_tokens(const data::Batch& batch, int64_t further) {
  std::vector<int32_t> ids(batch.inputs.size(), 0), targets(batch.inputs.size(), -100);
  const auto [rows, seq] = shape_of(batch);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t s = 0; s + further < seq; ++s) {
      const auto here = static_cast<size_t>(row * seq + s), there = here + static_cast<size_t>(further);
      if (batch.document_starts[here] != batch.document_starts[there]) continue;
      ids[here] = batch.inputs[there];
      targets[here] = batch.targets[there];
    }
  return {std::move(ids), std::move(targets)};
}

// Remembers the first layer whose output is not finite.
class FiniteWatch : public models::Observer {
 public:
  std::string first;
  void on_hidden(int64_t layer, const at::Tensor& residual) override {
    if (first.empty() && !at::isfinite(residual).all().item<bool>())
      first = layer < 0 ? "the embedding's output" : fmt::format("the output of layer {}", layer);
  }
};

// Tells the buckets how far a pass has come.
class BucketHooks : public models::LayerHooks {
 public:
  /// `finishes`: gradients of weights are complete when backward has gone through a layer; else the caller says when they are.
  BucketHooks(parallel::Buckets& buckets, bool finishes) : buckets_(buckets), finishes_(finishes) {}
  void before_forward(int64_t layer) override { buckets_.before_forward(layer); }
  void after_forward(int64_t layer) override { buckets_.after_forward(layer); }
  void before_backward(int64_t layer) override { buckets_.before_backward(layer); }
  void after_backward(int64_t layer) override { finishes_ ? buckets_.after_backward(layer) : buckets_.release(layer); }

 private:
  parallel::Buckets& buckets_;
  bool finishes_;
};

}  // namespace

TrainingStep::TrainingStep(models::Model& model, optim::Optimizer& optimizer, models::Recompute recompute, int64_t microbatch,
                           const Replicas& replicas)
    : model_(model),
      optimizer_(optimizer),
      recompute_(recompute),
      microbatch_(microbatch),
      counter_(model.blocks(), model.config().expert_capacity > 0),
      replicas_(replicas) {
  if (model.config().draft_block > 0) draft_loss_ = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(model.device()));
  if (replicas_.buckets)
    hooks_ = std::make_unique<BucketHooks>(*replicas_.buckets, !replicas_.stages || replicas_.schedule != parallel::Schedule::zero_bubble);
  else model_.parameters().allocate_gradients();  // now, so that they do not lie scattered between the activations of the first step
}

TrainingStep::Tensors TrainingStep::on_device(const data::Batch& batch, bool trains) const {
  const base::WorkScope scope("data", base::WorkKind::data);
  const auto& axis = model_.layout().sequence;
  const auto host = [&](const std::vector<int32_t>& values) {
    return at::from_blob(const_cast<int32_t*>(values.data()), shape_of(batch), at::kInt);
  };
  const auto tensor = [&](const at::Tensor& values, at::ScalarType dtype) { return device::to_device(values.to(dtype), model_.device()); };
  const auto targets = axis.own_tokens(host(batch.targets));
  const bool has_documents =
      std::any_of(batch.document_starts.begin(), batch.document_starts.end(), [](int32_t start) { return start != 0; });
  Tensors all{.ids = tensor(axis.own_tokens(host(batch.inputs)), at::kLong),
              .targets = tensor(targets, at::kLong),
              .document_start = has_documents ? host(batch.document_starts).clone() : at::Tensor(),
              .target_count = targets.ge(0).sum().item<int64_t>()};
  if (trains && sources_ > 0 && batch.pair_starts.empty()) {
    // A stage without the head has no losses; of ranks that share a token, only those of `losses` count it.
    if (model_.layout().stage.has_head())
      all.losses = at::zeros_like(all.targets, all.targets.options().dtype(model_.dtype() == at::kDouble ? at::kDouble : at::kFloat));
    all.sources = batch.sources;
    all.row_begins = batch.row_begins;
    all.row_targets = sums_of_rows(targets.ge(0), batch.row_begins, at::kLong);
  }
  if (!batch.row_begins.empty()) {
    all.most_of_row = batch.seq;
    if (trains) all.part_begins = cut_into_parts(batch.row_begins, batch.seq);
  }
  if (!batch.pair_starts.empty()) {
    all.pairs = pairs_on_device(batch);
    // Ranks that share the row count its pairs once.
    const auto is_pair = [](double margin) { return !std::isnan(margin); };
    all.target_count = axis.rank == 0 ? std::count_if(batch.reference_margins.begin(), batch.reference_margins.end(), is_pair) : 0;
  }
  const bool predicts = trains && further_total_.defined() && model_.layout().stage.has_head();
  for (int64_t further = 1; predicts && further <= model_.predictors(); ++further) {
    const auto [ids, behind] = further_tokens(batch, further);
    all.further_ids.push_back(tensor(axis.own_tokens(host(ids)), at::kLong));
    all.further_targets.push_back(tensor(axis.own_tokens(host(behind)), at::kLong));
  }
  return all;
}

layers::PreferencePairs TrainingStep::pairs_on_device(const data::Batch& batch) const {
  if (!preferences_.is_on()) throw base::ConfigError("the batch has pairs of answers, and train.dpo_beta is 0");
  std::vector<double> sign;
  std::vector<int64_t> first;
  for (size_t i = 0; i < batch.pair_starts.size(); ++i) {
    const int32_t start = batch.pair_starts[i];
    sign.push_back(start < 0 ? 0 : start == batch.document_starts[i] ? 1 : -1);
    first.push_back(std::max(start, 0));
  }
  const auto there = [&](const auto& values, at::ScalarType dtype) {
    return at::from_blob(const_cast<void*>(static_cast<const void*>(values.data())), shape_of(batch), dtype);
  };
  const auto own = [&](const at::Tensor& values) {
    return device::to_device(model_.layout().sequence.own_tokens(values).clone(), model_.device());
  };
  return {.sign = own(there(sign, at::kDouble)),
          .first = own(there(first, at::kLong)),
          .reference = device::to_device(there(batch.reference_margins, at::kDouble).clone(), model_.device())};
}

layers::WeighLosses TrainingStep::weigh_pairs(const layers::PreferencePairs& pairs, bool trains) const {
  const auto& axis = model_.layout().sequence;
  const auto sum = [group = axis.group](const at::Tensor& margins) {
    if (group && group->size() > 1) group->all_reduce(margins);
  };
  const auto totals = trains ? preference_totals_ : at::Tensor();
  return [=, settings = preferences_, counts = axis.rank == 0](const at::Tensor& losses) {
    return layers::preference_loss(losses, pairs, settings, sum, counts, totals);
  };
}

void TrainingStep::clip_scores_at(double threshold) {
  qk_clip_ = threshold;
  if (threshold == 0) return;
  largest_scores_ = model_.watch_scores();
  const bool is_stage = model_.layout().stage.is_on();  // others may have what this one has not
  if (!is_stage && std::none_of(largest_scores_.begin(), largest_scores_.end(), [](const at::Tensor& x) { return x.defined(); }))
    throw base::ConfigError(
        "optimizer.qk_clip = {}: no layer has softmax attention whose queries and keys are neither normed nor of capped scores; set it to "
        "0",
        threshold);
}

void TrainingStep::clip_scores(StepResult& result) {
  if (qk_clip_ == 0) return;
  const at::NoGradGuard no_grad;
  // One more number than heads, for a stage of a pipeline that has none.
  std::vector<at::Tensor> watched{layers::no_scores_yet(1, model_.device())};
  for (const auto& largest : largest_scores_)
    if (largest.defined()) watched.push_back(largest);
  const auto all = device::cat(watched);
  if (replicas_.targets && replicas_.targets->size() > 1) replicas_.targets->all_reduce(all, comm::Reduction::max);
  const auto host = all.cpu().to(at::kDouble);
  if (device::is_counting(all)) return;
  const auto most = host.amax(at::IntArrayRef{0}, /*keepdim=*/true);
  if (replicas_.everyone && replicas_.everyone->size() > 1) replicas_.everyone->all_reduce(most, comm::Reduction::max);
  result.attention_max = most.item<double>();
  int64_t heads = 1;
  for (int64_t layer = 0; layer < model_.blocks(); ++layer) {
    const auto& largest = largest_scores_[static_cast<size_t>(layer)];
    if (!largest.defined()) continue;
    const auto gamma = (qk_clip_ / host.narrow(0, heads, largest.numel()).clamp_min(qk_clip_));
    heads += largest.numel();
    if (gamma.min().item<double>() == 1) continue;
    for (const auto& [parameter, factors] : model_.clip_scores(layer, gamma)) optimizer_.scale_rows(*parameter, factors);
  }
}

void TrainingStep::learn_preferences(const layers::PreferenceSettings& settings) {
  preferences_ = settings;
  if (settings.is_on()) preference_totals_ = at::zeros({2}, at::TensorOptions().dtype(at::kFloat).device(model_.device()));
}

// Every tensor rank has counted the same.
void TrainingStep::collect_preferences(StepResult& result, int64_t pairs) const {
  if (!preferences_.is_on() || pairs == 0) return;
  auto totals = preference_totals_.clone();
  if (replicas_.losses && replicas_.losses->size() > 1) replicas_.losses->all_reduce(totals);
  const auto host = totals.cpu();
  result.dpo_accuracy = host[0].item<float>() / static_cast<double>(pairs);
  result.dpo_margin = host[1].item<float>() / static_cast<double>(pairs);
}

models::ForwardContext TrainingStep::context_for(const Tensors& t, models::Observer* observer) {
  const auto sequences = std::make_shared<layers::Sequences>(t.ids.size(0), t.ids.size(1), t.document_start, 0, model_.device(),
                                                             model_.layout().sequence.schedule());
  if (t.most_of_row > 0) sequences->count_rows_as(t.most_of_row);
  auto context = context_of(sequences, observer);
  context.further = further_of(t);
  context.losses = t.losses;
  if (t.pairs.is_defined()) context.weigh = weigh_pairs(t.pairs, observer == &counter_);
  return context;
}

models::ForwardContext TrainingStep::context_of(std::shared_ptr<layers::Sequences> sequences, models::Observer* observer) {
  models::ForwardContext context;
  context.sequences = std::move(sequences);
  context.recompute = recompute_;
  context.observer = observer;
  context.hooks = hooks_.get();
  context.offload = offload();
  context.drops_tokens = context.learns_drafts = observer == &counter_;
  if (observer == &counter_) context.draft_loss = draft_loss_;
  if (routing_totals_ && observer == &counter_) context.routing_losses = routing_losses();
  return context;
}

void TrainingStep::train_predictors(double coefficient) {
  if (model_.predictors() == 0) return;
  further_coefficient_ = coefficient;
  further_total_ = at::zeros({1}, at::TensorOptions().dtype(at::kFloat).device(model_.device()));
}

void TrainingStep::collect_further_losses(StepResult& result) const {
  const auto over_ranks = [&](const at::Tensor& total) -> std::optional<double> {
    if (!total.defined()) return {};
    const auto sum = total.clone();
    if (replicas_.losses && replicas_.losses->size() > 1) replicas_.losses->all_reduce(sum);
    return sum.cpu().item<float>();
  };
  result.mtp_loss = over_ranks(further_total_);
  result.draft_loss = over_ranks(draft_loss_);
}

void TrainingStep::add_routing_losses(const layers::RoutingLossSettings& settings) {
  if (!settings.is_on()) return;
  if (!model_.has_experts())
    throw base::ConfigError("train.{} > 0, and the model has no experts; set it to 0",
                            settings.balance > 0 ? "balance_loss" : "router_z_loss");
  routing_loss_settings_ = settings;
  routing_totals_ = std::make_unique<layers::RoutingTotals>(model_.blocks(), model_.routing_classes(), model_.device());
}

std::shared_ptr<layers::RoutingLosses> TrainingStep::routing_losses() {
  const auto sum = [group = replicas_.balance](const at::Tensor& counts) {
    if (group && group->size() > 1) group->all_reduce(counts);
  };
  return std::make_shared<layers::RoutingLosses>(routing_loss_settings_, token_share_, sum, *routing_totals_);
}

// Of all ranks, once a step.
void TrainingStep::collect_routing_losses(StepResult& result) const {
  if (!routing_totals_) return;
  auto values = routing_totals_->values().clone();
  if (replicas_.tokens && replicas_.tokens->size() > 1) replicas_.tokens->all_reduce(values);
  int64_t layers = 0;
  for (int64_t layer = 0; layer < model_.blocks(); ++layer) layers += model_.has_experts(layer) ? 1 : 0;
  const auto host = values.cpu();
  const auto mean = [&](int64_t which) { return static_cast<double>(host[which].item<float>()) / static_cast<double>(layers); };
  if (routing_loss_settings_.balance > 0) result.balance_loss = mean(0);
  if (routing_loss_settings_.z > 0) result.router_z_loss = mean(1);
}

void TrainingStep::for_each_microbatch(const Tensors& all, const std::function<void(const Tensors&)>& visit) const {
  for (size_t part = 0; part + 1 < all.part_begins.size(); ++part) visit(tokens_of(all, all.part_begins[part], all.part_begins[part + 1]));
  if (!all.part_begins.empty()) return;
  const int64_t batch = all.ids.size(0), rows = microbatch_ > 0 ? microbatch_ : batch;
  for (int64_t from = 0; from < batch; from += rows) {
    const int64_t count = std::min(rows, batch - from);
    const auto of_all = [&](const std::vector<at::Tensor>& tensors) {
      std::vector<at::Tensor> rows_of;
      for (const auto& tensor : tensors) rows_of.push_back(narrow_rows(tensor, from, count));
      return rows_of;
    };
    visit({.ids = narrow_rows(all.ids, from, count),
           .targets = narrow_rows(all.targets, from, count),
           .further_ids = of_all(all.further_ids),
           .further_targets = of_all(all.further_targets),
           .document_start = narrow_rows(all.document_start, from, count),
           .losses = narrow_rows(all.losses, from, count),
           .pairs = {.sign = narrow_rows(all.pairs.sign, from, count),
                     .first = narrow_rows(all.pairs.first, from, count),
                     .reference = narrow_rows(all.pairs.reference, from, count)}});
  }
}

std::vector<double> TrainingStep::sum_of_losses(std::vector<double> values) const {
  if (!replicas_.losses || replicas_.losses->size() == 1) return values;
  replicas_.losses->all_reduce(at::from_blob(values.data(), {static_cast<int64_t>(values.size())}, at::kDouble));
  return values;
}

void TrainingStep::tell_sources_apart(size_t sources) {
  if (graphs_ && (sources > 0) != (sources_ > 0)) graphs_->forget();
  sources_ = sources;
}

// Rounded as the losses of microbatches are (loss_sum.h): the sums do not depend on which rank has which rows.
std::vector<double> TrainingStep::own_losses_of_sources(const Tensors& all, double scale) const {
  std::vector<double> sums(all.row_targets.defined() ? 2 * sources_ : 0, 0);
  if (!all.losses.defined() || sums.empty()) return sums;
  const auto losses = sums_of_rows(all.losses, all.row_begins, at::kDouble).mul_(scale).cpu();
  for (size_t row = 0; row < all.sources.size(); ++row) {
    const auto source = static_cast<size_t>(all.sources[row]);
    sums[source] += kernels::rounded(losses.const_data_ptr<double>()[row], kernels::kLossExponent);
    sums[sources_ + source] += static_cast<double>(all.row_targets.const_data_ptr<int64_t>()[row]);
  }
  return sums;
}

int64_t TrainingStep::count_targets(const Tensors& own) const {
  if (is_alone()) return own.target_count;
  const auto count = at::full({1}, own.target_count, at::kLong);
  replicas_.targets->all_reduce(count);
  return count.item<int64_t>();
}

int64_t TrainingStep::count_tokens(const data::Batch& own) const {
  if (own.row_begins.empty()) return own.batch * own.seq * replicas_.data;
  if (is_alone()) return own.row_begins.back();
  const auto count = at::full({1}, own.row_begins.back(), at::kLong);
  replicas_.targets->all_reduce(count);
  return count.item<int64_t>();
}

// Ranks take part in one another's passes: each has as many as the one that needs the most. That is at most one for each row.
std::vector<int64_t> TrainingStep::cut_into_parts(const std::vector<int64_t>& row_begins, int64_t most_of_row) const {
  if (microbatch_ == 0) return {0, row_begins.back()};
  const auto fewest = at::full({1}, static_cast<int64_t>(cut_rows(row_begins, microbatch_ * most_of_row).size()) - 1, at::kLong);
  if (!is_alone()) replicas_.targets->all_reduce(fewest, comm::Reduction::max);
  return cut_rows(row_begins, microbatch_ * most_of_row, fewest.item<int64_t>());
}

double TrainingStep::run_stages(const Tensors& all, double scale, bool forward_only) {
  std::vector<Tensors> parts;
  if (forward_only) parts = {all};
  else for_each_microbatch(all, [&](const Tensors& part) { parts.push_back(part); });
  const parallel::PipelineShape shape{replicas_.schedule, replicas_.stages->size(), model_.layout().stage.chunks(),
                                      static_cast<int>(parts.size())};
  models::Observer* observer = forward_only ? nullptr : &counter_;
  PipelinedPass pass(
      model_, std::move(parts), scale, [&](const Tensors& part) { return context_for(part, observer); }, replicas_.buckets,
      replicas_.schedule == parallel::Schedule::zero_bubble && !forward_only);
  parallel::run_pipeline(shape, *replicas_.stages, pass, forward_only);
  return pass.loss();
}

std::shared_ptr<const models::FurtherTargets> TrainingStep::further_of(const Tensors& part) const {
  if (part.further_ids.empty()) return nullptr;
  return std::make_shared<models::FurtherTargets>(models::FurtherTargets{
      .coefficient = further_coefficient_, .ids = part.further_ids, .targets = part.further_targets, .total = further_total_});
}

at::Tensor TrainingStep::run_pass(const Tensors& part, double scale, models::ForwardContext context) {
  const auto loss = [&] {
    const base::WorkScope scope("forward", base::Work::Rule::forward);
    return model_.loss(part.ids, part.targets, scale, context);
  }();
  kernels::backward({loss});
  model_.parameters().collect_gradients();
  return loss;
}

double TrainingStep::forward_and_backward(const Tensors& all, double scale) {
  if (replicas_.stages) return run_stages(all, scale, false);
  auto* buckets = replicas_.buckets;
  const int64_t batch = all.ids.size(0), rows = microbatch_ > 0 ? microbatch_ : batch;
  const int64_t parts = all.part_begins.empty() ? (batch + rows - 1) / rows : static_cast<int64_t>(all.part_begins.size()) - 1;
  int64_t begun = 0;
  LossSum sum;
  for_each_microbatch(all, [&](const Tensors& part) {
    const bool is_first = begun == 0, is_last = ++begun == parts;
    if (buckets) buckets->begin_backward(is_last);  // the head's gradient is made in the forward pass
    if (graphs_ && !part.pairs.is_defined() && (!buckets || !(is_first || is_last))) {
      sum.add(graphs_->run(part, scale, [&](const Tensors& of_graph, const std::shared_ptr<layers::Sequences>& sequences) {
        auto context = context_of(sequences, &counter_);
        context.further = further_of(of_graph);
        context.losses = of_graph.losses;
        return run_pass(of_graph, scale, std::move(context));
      }));
    } else {
      sum.add(run_pass(part, scale, context_for(part, &counter_)));
    }
    if (buckets) buckets->finish_backward();
  });
  return sum.total();
}

StepResult TrainingStep::run(const data::Batch& batch, double lr, ReplicaCheck* check) {
  StepResult result;
  counter_.clear();
  if (graphs_) graphs_->begin_step();
  const Tensors all = on_device(batch, /*trains=*/true);
  if (further_total_.defined()) further_total_.zero_();
  if (draft_loss_.defined()) draft_loss_.zero_();
  for (const auto& largest : largest_scores_)
    if (largest.defined()) largest.fill_(-std::numeric_limits<double>::infinity());
  // Every target of the global batch weighs the same, however documents and padding fall into microbatches and ranks.
  const int64_t targets = count_targets(all);
  const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, targets));
  if (preference_totals_.defined()) preference_totals_.zero_();
  if (routing_totals_) routing_totals_->clear();
  const int64_t copies = draft_loss_.defined() ? 2 : 1;
  result.tokens = count_tokens(batch);
  token_share_ = 1.0 / static_cast<double>(std::max<int64_t>(1, result.tokens * copies));
  if (replicas_.buckets) replicas_.buckets->begin_step();
  finish(forward_and_backward(all, scale), scale, lr, &all, result, check);
  if (all.pairs.is_defined()) collect_preferences(result, targets);
  report_experts(result);
  return result;
}

// Of the experts alone: tokens that took the skip class are no expert's load.
void TrainingStep::report_experts(StepResult& result) const {
  int64_t sent = 0, taken = 0;
  for (const auto& count : counter_.counts()) {
    if (!count.defined()) continue;
    const auto* numbers = count.data_ptr<int64_t>();
    const int64_t columns = count.numel(), classes = columns - counter_.columns(0);
    const auto& tokens = result.expert_tokens.emplace_back(numbers, numbers + std::min(classes, model_.config().experts));
    const auto slots = static_cast<double>(std::accumulate(numbers, numbers + classes, int64_t{0}));
    const int64_t of_layer = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
    result.router_entropy.push_back(ExpertCounter::entropy(numbers[classes]) * static_cast<double>(model_.config().top_k) /
                                    std::max(slots, 1.0));
    if (model_.config().expert_capacity == 0) continue;
    const int64_t kept = numbers[columns - 1];
    result.dropped_of_layers.push_back(of_layer > 0 ? 1 - static_cast<double>(kept) / static_cast<double>(of_layer) : 0);
    sent += of_layer, taken += kept;
  }
  if (model_.config().expert_capacity > 0 && sent > 0) result.dropped = 1 - static_cast<double>(taken) / static_cast<double>(sent);
}

void TrainingStep::finish(double loss, double scale, double lr, const Tensors* all, StepResult& result, ReplicaCheck* check) {
  if (replicas_.buckets) replicas_.buckets->finish_step();
  std::vector<double> losses{loss};
  if (all)
    for (const double sum : own_losses_of_sources(*all, scale)) losses.push_back(sum);
  losses = sum_of_losses(std::move(losses));
  result.loss = losses[0];
  for (size_t source = 1; source + sources_ < losses.size(); ++source) {
    const double targets = losses[source + sources_];
    result.sources.push_back({targets > 0 ? losses[source] / (scale * targets) : 0, static_cast<int64_t>(targets)});
  }
  collect_expert_counts();
  collect_routing_losses(result);
  collect_further_losses(result);
  const auto norm = optimizer_.gradient_norm();
  result.grad_norm = norm.norm;
  if (!std::isfinite(result.loss)) result.reason = all ? first_nonfinite_activation(*all) : "the loss";
  else if (!norm.first_nonfinite.empty()) result.reason = "the gradient of " + norm.first_nonfinite;
  result.skipped = !result.reason.empty() || (keeps_ && !keeps_(result.loss, result.grad_norm));
  if (check) check->before_update();
  if (result.skipped) model_.parameters().drop_gradients();
  else update(lr, norm.norm, result);
}

StepResult TrainingStep::run_without_passes(double lr) {
  StepResult result;
  counter_.clear();
  auto* buckets = replicas_.buckets;
  if (buckets) {
    buckets->begin_step();
    buckets->begin_backward(/*is_last=*/true);
    buckets->finish_backward();
  }
  for (const auto& p : model_.parameters().all()) {
    if (buckets || !p->is_trained()) continue;
    bool overwrite = false;
    p->gradient_buffer(overwrite);
  }
  finish(0, 1, lr, nullptr, result);
  return result;
}

// One message and one read for all layers; a stage of a pipeline knows its own.
void TrainingStep::collect_expert_counts() {
  if (!model_.has_experts()) return;
  const bool is_shared = replicas_.tokens && replicas_.tokens->size() > 1;
  std::vector<at::Tensor> rows;
  bool is_known = is_shared;
  for (const auto& count : counter_.counts()) {
    is_known = is_known || count.defined();
    rows.push_back(count.defined() ? count
                                   : at::zeros({counter_.columns(model_.routing_classes())},
                                               at::TensorOptions().dtype(at::kLong).device(model_.device())));
  }
  if (!is_known) return;
  const auto all = at::stack(rows);
  if (is_shared) replicas_.tokens->all_reduce(all);
  const auto host = all.cpu();
  if (device::is_counting(all)) host.fill_(1);  // without data all have as many
  for (int64_t layer = 0; layer < host.size(0); ++layer)
    if (is_shared ? model_.has_experts(layer) : counter_.counts()[static_cast<size_t>(layer)].defined()) counter_.set(layer, host[layer]);
}

void TrainingStep::update(double lr, double norm, StepResult& result) {
  if (before_update_) before_update_();
  optimizer_.step(lr, norm);
  clip_scores(result);
  if (replicas_.buckets) replicas_.buckets->publish();  // on their way while what follows goes on
  for (int64_t layer = 0; layer < model_.blocks(); ++layer) {
    const auto& count = counter_.counts()[static_cast<size_t>(layer)];
    auto* bias = model_.balancing_bias(layer);
    if (bias && count.defined()) optimizer_.balance(*bias, count.narrow(0, 0, bias->elements()), model_.config().experts);
  }
}

double TrainingStep::evaluate(const data::Batch& batch, int64_t& targets) {
  const at::NoGradGuard no_grad;
  targets = 0;
  double loss = 0;
  // A rank without sequences passes its share of the weights on to the others.
  if (batch.batch > 0 || replicas_.buckets) {
    const auto& layout = model_.layout();
    const int64_t fewest = layout.tensor.size * layout.sequence.all_chunks() * (layout.sequence.is_on() ? model_.halo() : 1);
    const auto own = batch.batch > 0 ? batch : idle_batch(fewest);
    const Tensors all = on_device(own, /*trains=*/false);
    targets = count_targets(all);
    const double scale = 1.0 / static_cast<double>(std::max<int64_t>(1, targets));
    if (replicas_.stages) return sum_of_losses({run_stages(all, scale, true)})[0];
    auto context = context_for(all, nullptr);
    loss = model_.loss(all.ids, all.targets, scale, context).item<double>();
  }
  return sum_of_losses({loss})[0];
}

void TrainingStep::publish_weights() {
  if (!replicas_.buckets) return;
  replicas_.buckets->publish();
  replicas_.buckets->complete_values();
}

// All ranks pass through the same messages, whoever finds what.
std::string TrainingStep::first_nonfinite_activation(const Tensors& tensors) {
  const at::NoGradGuard no_grad;
  std::string found = optimizer_.first_nonfinite_weight();
  if (!found.empty()) found = "the weight " + found;
  FiniteWatch watch;
  if (!replicas_.stages)
    for_each_microbatch(tensors, [&](const Tensors& part) {
      auto context = context_for(part, &watch);
      model_.loss(part.ids, part.targets, 1, context);
    });
  if (found.empty()) found = watch.first;
  if (replicas_.losses && replicas_.losses->size() > 1) {
    // What the first rank found that found something.
    const auto all = comm::gather_texts(*replicas_.losses, found, 0);
    const auto first = std::find_if(all.begin(), all.end(), [](const auto& text) { return !text.empty(); });
    found = comm::broadcast_text(*replicas_.losses, first == all.end() ? "" : *first, 0);
  }
  return found.empty() ? "the loss" : found;
}

}  // namespace ingot::train
