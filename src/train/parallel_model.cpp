#include "train/parallel_model.h"

#include <algorithm>
#include <cctype>

#include "base/environment.h"
#include "base/log.h"
#include "base/process.h"
#include "base/text.h"
#include "layers/device.h"
#include "layers/dtype.h"
#include "parallel/bandwidth_knee.h"

namespace ingot::train {

using mesh::Axis;

models::Layout layout_of(const mesh::Mesh& mesh, const mesh::ParallelConfig& config, mesh::Groups* groups) {
  models::Layout layout;
  layout.tensor = {.rank = mesh.position(Axis::tensor), .size = mesh.size(Axis::tensor), .shards_tokens = config.sharded_norms};
  if (groups && layout.tensor.is_on()) layout.tensor.group = &groups->along({Axis::tensor});
  return layout;
}

ParallelModel::ParallelModel(const TrainingSetup& setup, mesh::Groups& groups) : config_(setup.parallel), groups_(groups) {
  model_ = models::create_model(setup.model, layout_of(groups.mesh(), config_, &groups));
  model_->allocate(layers::compute_dtype(setup.precision), layers::device_named(setup.device));
  model_->initialise(setup.seed);
  auto& everyone = groups_.world().everyone();
  if (everyone.size() == 1) {
    optimizer_ = std::make_unique<optim::Optimizer>(model_->parameters(), setup.optimizer);
    step_ = std::make_unique<TrainingStep>(*model_, *optimizer_, setup.recompute, setup.microbatch);
    return;
  }
  const auto& tensor = model_->layout().tensor;
  auto& data = groups_.along({Axis::data});
  auto& tokens = tensor.is_on() && tensor.shards_tokens ? groups_.along({Axis::data, Axis::tensor}) : data;
  buckets_ = std::make_unique<parallel::Buckets>(
      model_->parameters(), [this](const layers::Parameter& p) -> comm::Group& { return sum_group(p); },
      parallel::Buckets::Options{bucket_bytes(), static_cast<int>(config_.zero), config_.reduce_in == "bf16"});
  optim::Team team{.shards = buckets_->shards(), .everyone = &everyone, .is_primary = everyone.rank() == 0};
  for (auto& shard : team.shards) {
    // Held whole and summed over data ranks alone: every tensor rank has the same.
    const bool is_repeated = shard.parameter->part.empty() && &sum_group(*shard.parameter) == &data;
    if (is_repeated && tensor.rank != 0) shard.is_primary = false;
  }
  team.owners_of = [this](const layers::Parameter& p) -> comm::Group& { return owners(p); };
  optimizer_ = std::make_unique<optim::Optimizer>(model_->parameters(), setup.optimizer, std::move(team));
  step_ = std::make_unique<TrainingStep>(*model_, *optimizer_, setup.recompute, setup.microbatch, Replicas{&data, &tokens, buckets_.get()});
}

// The ranks over which a gradient is summed. Of a parameter that tensor-parallel ranks hold whole each knows the part of its own
// tokens, where tokens are spread over them.
comm::Group& ParallelModel::sum_group(const layers::Parameter& p) {
  const auto& tensor = model_->layout().tensor;
  const bool is_partial = tensor.is_on() && tensor.shards_tokens && p.part.empty();
  return groups_.along(is_partial ? std::vector{Axis::data, Axis::tensor} : std::vector{Axis::data});
}

// The ranks that own parts of a parameter's optimizer state.
comm::Group& ParallelModel::owners(const layers::Parameter& p) {
  const bool is_cut = !p.part.empty();
  if (config_.zero == 0) return groups_.along(is_cut ? std::vector{Axis::tensor} : std::vector<Axis>{});
  return is_cut ? groups_.along({Axis::data, Axis::tensor}) : sum_group(p);
}

int64_t ParallelModel::bucket_bytes() {
  if (config_.bucket_mib > 0) return static_cast<int64_t>(config_.bucket_mib * (1 << 20));
  auto& data = groups_.along({Axis::data});
  auto& everyone = groups_.world().everyone();
  auto key = fmt::format("{}-{}-{}", base::host_name(), groups_.world().description(), data.size());
  std::replace_if(
      key.begin(), key.end(), [](unsigned char c) { return !std::isalnum(c); }, '-');
  // All ranks must cut alike, also those of other data groups.
  const auto bytes = at::full({1}, parallel::kept_bandwidth_knee(data, model_->device(), base::environment().cache_folder(), key),
                              at::TensorOptions().dtype(at::kLong).device(model_->device()));
  everyone.broadcast(bytes, 0);
  const auto knee = bytes.item<int64_t>();
  if (data.size() > 1 && everyone.rank() == 0)
    base::log_info("gradients are reduced {} at a time, with which this group comes near its best bandwidth (parallel.bucket_mib)",
                   base::format_bytes(knee));
  return knee;
}

}  // namespace ingot::train
