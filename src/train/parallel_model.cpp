#include "train/parallel_model.h"

#include <algorithm>
#include <bit>
#include <cctype>

#include "base/environment.h"
#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "base/work_scope.h"
#include "comm/segment.h"
#include "device/virtual_device.h"
#include "layers/dtype.h"
#include "parallel/bandwidth_knee.h"

namespace ingot::train {

using mesh::Axis;

std::vector<tensor::Range> cut_depth(const models::ModelConfig& config, int pieces) {
  if (pieces > config.layers)
    throw base::ConfigError(
        "a pipeline of {} pieces (parallel.pipeline x parallel.pipeline_chunks) needs as many layers; model.layers is {}", pieces,
        config.layers);
  // A layer weighs what one token meets of its matrices, which is nearly all of its FLOPs at usual lengths; the last one has the head.
  std::vector<double> costs(static_cast<size_t>(config.layers), 0);
  const auto whole = models::create_model(config);
  for (const auto& p : whole->parameters().all()) {
    if (p->shape.size() < 2) continue;
    // A stack of experts' matrices; Parameter::is_expert is of layouts that share them out.
    const bool is_of_experts = p->kind == layers::Parameter::Kind::matrix && p->shape.size() == 3;
    const bool is_head = p->kind == (config.tie_embeddings ? layers::Parameter::Kind::embedding : layers::Parameter::Kind::head);
    const double used = is_of_experts ? static_cast<double>(config.top_k) / static_cast<double>(config.experts)
                        : is_head     ? static_cast<double>(1 + config.mtp_layers)
                                      : 1;
    const int64_t layer = is_head ? config.layers : p->layer;
    if (layer >= 0) costs[static_cast<size_t>(std::min(layer, config.layers - 1))] += used * static_cast<double>(p->elements());
  }
  // best[p][l]: the costliest of p pieces that hold the first l layers, made as cheap as possible.
  const size_t n = costs.size(), p = static_cast<size_t>(pieces);
  std::vector<std::vector<double>> best(p + 1, std::vector<double>(n + 1, 1e300));
  std::vector<std::vector<size_t>> cut(p + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t piece = 1; piece <= p; ++piece) {
    for (size_t end = piece; end <= n; ++end) {
      double cost = 0;
      for (size_t begin = end; begin-- > piece - 1;) {
        cost += costs[begin];
        const double worst = std::max(best[piece - 1][begin], cost);
        if (worst < best[piece][end]) best[piece][end] = worst, cut[piece][end] = begin;
      }
    }
  }
  std::vector<tensor::Range> ranges(p);
  for (size_t piece = p, end = n; piece > 0; --piece) {
    ranges[piece - 1] = {static_cast<int64_t>(cut[piece][end]), static_cast<int64_t>(end)};
    end = cut[piece][end];
  }
  return ranges;
}

parallel::Layout layout_of(const mesh::Mesh& mesh, const mesh::ParallelConfig& config, const models::ModelConfig& model,
                           mesh::Groups* groups) {
  auto layout = parallel::layout_of(mesh, config, groups);
  if (layout.stage.is_on()) layout.stage.pieces = cut_depth(model, layout.stage.size * static_cast<int>(config.pipeline_chunks));
  return layout;
}

int64_t shared_bytes(const mesh::Mesh& mesh, const mesh::ParallelConfig& config, const parallel::Layout& layout) {
  using comm::Segment;
  const auto collectives = [&](const std::vector<Axis>& axes) {
    return Segment::collective_bytes(static_cast<int>(mesh.members(axes).size()));
  };
  int64_t bytes = collectives(mesh.token_axes()) + collectives({mesh.weight_axis()});
  if (layout.tensor_sequence.is_on()) bytes += 2 * Segment::channel_bytes();
  if (layout.experts.is_on()) bytes += collectives({Axis::expert, Axis::expert_tensor}) + collectives({Axis::expert_data});
  // To the next rank and from the one before; in a pipeline both ways.
  if (layout.sequence.is_on()) bytes += layout.sequence.method->channels * Segment::channel_bytes();
  if (layout.stage.is_on()) {
    const bool is_end = mesh.position(Axis::pipeline) == 0 || mesh.position(Axis::pipeline) + 1 == mesh.size(Axis::pipeline);
    bytes += (is_end && config.pipeline_chunks == 1 ? 2 : 4) * Segment::channel_bytes();
  }
  return bytes;
}

ParallelModel::ParallelModel(const TrainingSetup& setup, mesh::Groups& groups)
    : config_(setup.parallel), groups_(groups), precision_(setup.precision) {
  model_ = models::create_model(setup.model, layout_of(groups.mesh(), config_, setup.model, &groups));
  model_->allocate(layers::precision_named(setup.precision), setup.device);
  model_->initialise(setup.seed);
  model_->set_z_loss(setup.z_loss);
  const base::WorkScope scope("optimizer", base::WorkKind::adamw);
  auto& everyone = groups_.world().everyone();
  if (everyone.size() == 1 && !setup.is_reproducible) {
    optimizer_ = std::make_unique<optim::Optimizer>(model_->parameters(), setup.optimizer);
    step_ = std::make_unique<TrainingStep>(*model_, *optimizer_, setup.recompute, setup.microbatch);
    step_->add_routing_losses(setup.routing_losses);
    step_->train_predictors(setup.mtp_loss);
    step_->learn_preferences(setup.preferences);
    step_->clip_scores_at(setup.optimizer.qk_clip);
    if (setup.offloads_activations) step_->offload_activations();
    if (setup.uses_graphs) step_->use_graphs();
    return;
  }
  const auto& tensor = model_->layout().tensor;
  const auto& mesh = groups_.mesh();
  auto& targets = groups_.along(mesh.token_axes());
  const bool is_pipeline = model_->layout().stage.is_on();
  std::vector spread = {Axis::pipeline};
  for (const Axis axis : mesh.token_axes()) spread.push_back(axis);
  auto& losses = is_pipeline ? groups_.along(spread) : targets;
  if (tensor.shards_tokens) spread.push_back(Axis::tensor);
  auto& tokens = groups_.along(spread);
  comm::Group* balance = nullptr;
  if (setup.routing_losses.balance > 0) balance = &groups_.along(axes_of_balance(setup.routing_losses.over));
  bucket_options_ = {bucket_bytes(), static_cast<int>(config_.zero), config_.grad_reduce_dtype == "bf16",
                     setup.is_stage || mesh.size(Axis::pipeline) > 1, setup.is_reproducible};
  buckets_ = std::make_unique<parallel::Buckets>(
      model_->parameters(), [this](const layers::Parameter& p) -> comm::Group& { return sum_group(p); }, bucket_options_);
  optim::Team team{.shards = buckets_->shards(), .everyone = &everyone, .is_primary = targets.rank() == 0 && tensor.rank == 0};
  for (auto& shard : team.shards) {
    // Held whole and not summed over tensor ranks: each of them has the same.
    const bool is_repeated = shard.parameter->part.empty() && !(tensor.is_on() && tensor.shards_tokens);
    if (is_repeated && tensor.rank != 0) shard.is_primary = false;
  }
  team.frozen = parallel::frozen_shards(model_->parameters());
  for (auto& shard : team.frozen) shard.is_primary = sum_group(*shard.parameter).rank() == 0;
  team.owners_of = [this](const layers::Parameter& p) -> comm::Group& { return owners(p); };
  if (device::is_counting(setup.device)) team.slices_of = [this](const layers::Parameter& p) { return owned_slices(p); };
  optimizer_ = std::make_unique<optim::Optimizer>(model_->parameters(), setup.optimizer, std::move(team));
  step_ = std::make_unique<TrainingStep>(*model_, *optimizer_, setup.recompute, setup.microbatch,
                                         Replicas{.everyone = &everyone,
                                                  .targets = &targets,
                                                  .losses = &losses,
                                                  .tokens = &tokens,
                                                  .balance = balance,
                                                  .data = mesh.size(Axis::data),
                                                  .buckets = buckets_.get(),
                                                  .stages = is_pipeline ? &groups_.along({Axis::pipeline}) : nullptr,
                                                  .schedule = parallel::schedule_from_name(config_.pipeline_schedule)});
  step_->add_routing_losses(setup.routing_losses);
  step_->train_predictors(setup.mtp_loss);
  step_->learn_preferences(setup.preferences);
  step_->clip_scores_at(setup.optimizer.qk_clip);
  if (setup.offloads_activations) step_->offload_activations();
  if (setup.uses_graphs) step_->use_graphs();
}

ReplicaCheck* ParallelModel::replica_check() {
  if (!replica_check_ && buckets_) replica_check_ = std::make_unique<ReplicaCheck>(*model_, *optimizer_, *buckets_, config_, groups_);
  return replica_check_.get();
}

// The ranks that have other tokens of a layer, of the same sequences or of the whole batch.
std::vector<Axis> ParallelModel::axes_of_balance(layers::BalanceOver over) const {
  std::vector<Axis> axes;
  for (const Axis axis : groups_.mesh().token_axes())
    if (axis != Axis::data || over == layers::BalanceOver::batch) axes.push_back(axis);
  if (model_->layout().tensor.shards_tokens) axes.push_back(Axis::tensor);
  return axes;
}

// The ranks over which a gradient is summed: those that have other tokens. Of a parameter that tensor-parallel ranks hold whole each knows
// the part of its own tokens, where tokens are spread over them.
std::vector<Axis> ParallelModel::axes_of_sum(const layers::Parameter& p) const {
  if (p.is_expert) return {Axis::expert_data};
  const auto& tensor = model_->layout().tensor;
  // A part of a matrix gets the gradient of its own axis' tokens from the layer.
  std::vector<Axis> axes = p.part.empty() ? groups_.mesh().token_axes() : std::vector{Axis::data, Axis::context};
  if (tensor.is_on() && tensor.shards_tokens && p.part.empty()) axes.push_back(Axis::tensor);
  return axes;
}

comm::Group& ParallelModel::sum_group(const layers::Parameter& p) {
  auto axes = axes_of_sum(p);
  if (model_->layout().stage.is_on() && p.is_at_both_ends) {
    axes.insert(axes.begin(), Axis::pipeline);
    return groups_.along_ends(axes);
  }
  return groups_.along(axes);
}

// The ranks that own parts of a parameter's optimizer state.
comm::Group& ParallelModel::owners(const layers::Parameter& p) {
  return config_.zero > 0 && !p.is_expert && p.part.empty() ? sum_group(p) : groups_.along(axes_of_owners(p));
}

std::vector<Axis> ParallelModel::axes_of_owners(const layers::Parameter& p) const {
  if (p.is_expert) return config_.zero == 0 ? std::vector{Axis::expert_tensor} : std::vector{Axis::expert_tensor, Axis::expert_data};
  const Axis weights = groups_.mesh().weight_axis();
  if (config_.zero == 0) return p.part.empty() ? std::vector<Axis>{} : std::vector{weights};
  if (!p.part.empty()) return {Axis::data, Axis::context, weights};
  return axes_of_sum(p);
}

// Ranks that stand alike on the axis that cuts a parameter sum its gradient together, in their order.
std::vector<parallel::OwnedSlice> ParallelModel::owned_slices(const layers::Parameter& p) {
  const auto& mesh = groups_.mesh();
  const Axis cut = p.is_expert ? Axis::expert_tensor : mesh.weight_axis();
  const bool is_cut = p.is_expert || !p.part.empty();
  auto& alike = owners_alike_[(p.is_expert ? 2 : 0) + (is_cut ? 1 : 0)];
  if (alike.empty()) {
    int owner = 0;
    for (const int rank : mesh.members(axes_of_owners(p))) {
      auto& here = alike[is_cut ? mesh.position_of(rank, cut) : 0];
      if (here.owners.empty()) here.rank = rank;
      here.owners.push_back(owner++);
    }
  }
  std::vector<parallel::OwnedSlice> all;
  for (const auto& [position, here] : alike) {
    const auto& like = other(here.rank, p);
    const auto& part = like.model->parameters().get(p.name).part;
    // Without ZeRO every replica has the same, and only one is among the owners.
    for (const auto& [rank, range] : like.slices.at(p.name))
      if (static_cast<size_t>(rank) < here.owners.size()) all.push_back({here.owners[static_cast<size_t>(rank)], &part, range});
  }
  return all;
}

// One for each place on the axes that cut weights stands for all there.
const ParallelModel::Other& ParallelModel::other(int rank, const layers::Parameter& p) {
  const auto& mesh = groups_.mesh();
  const auto place = p.is_expert ? -1 - mesh.position_of(rank, Axis::expert_tensor) : mesh.position_of(rank, mesh.weight_axis());
  auto& known = others_[place];
  if (known.model) return known;
  known.model = models::create_model(model_->config(), layout_of(mesh::Mesh(config_, rank, mesh.world()), config_, model_->config()));
  known.model->allocate(layers::precision_named(precision_), at::kMeta);
  known.slices = parallel::Buckets::slices_of(
      known.model->parameters(), [this](const layers::Parameter& q) -> comm::Group& { return sum_group(q); }, bucket_options_);
  return known;
}

int64_t ParallelModel::bucket_bytes() {
  constexpr int64_t kSmallestLimit = 1 << 20, kLargestLimit = 1 << 30;
  if (config_.bucket_mib > 0) return static_cast<int64_t>(config_.bucket_mib * (1 << 20));
  auto& replicas = groups_.along(groups_.mesh().token_axes());
  auto& everyone = groups_.world().everyone();
  auto key = fmt::format("{}-{}-{}", base::host_name(), groups_.world().description(), replicas.size());
  std::replace_if(
      key.begin(), key.end(), [](unsigned char c) { return !std::isalnum(c); }, '-');
  // A bucket never holds more than all gradients, which on stages of a pipeline are not equally many.
  const auto most =
      at::full({1}, std::clamp<int64_t>(4 * model_->parameters().weight_elements(), kSmallestLimit, kLargestLimit), at::kLong);
  everyone.all_reduce(most, comm::Reduction::max);
  const parallel::KneeQuestion question{.is_scattered = config_.zero > 0,
                                        .most_bytes = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(most.item<int64_t>())))};
  // All ranks must cut alike, also those of other groups.
  const auto bytes = at::full(
      {1}, parallel::kept_bandwidth_knee(replicas, model_->device(), question, base::environment().cache_folder(), key), at::kLong);
  everyone.broadcast(bytes, 0);
  const auto knee = bytes.item<int64_t>();
  if (replicas.size() > 1 && everyone.rank() == 0)
    base::log_info("gradients are reduced {} at a time, with which this group comes near its best bandwidth (parallel.bucket_mib)",
                   base::format_bytes(knee));
  return knee;
}

}  // namespace ingot::train
