#include "optim/optimizer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/work_scope.h"
#include "device/device.h"
#include "kernels/gemm_backend.h"
#include "kernels/update.h"
#include "optim/newton_schulz.h"

namespace ingot::optim {

using layers::Parameter;

bool takes_muon(const Parameter& p, const OptimizerConfig& config) { return config.name == "muon" && p.kind == Parameter::Kind::matrix; }

bool takes_decay(const Parameter& p) { return p.kind == Parameter::Kind::matrix || p.kind == Parameter::Kind::convolution; }

namespace {

Team alone(const layers::ParameterList& parameters) {
  Team team;
  team.shards = parallel::whole_shards(parameters);
  return team;
}

bool is_all_of(const parallel::Shard& shard) { return shard.size() == shard.parameter->elements(); }

}  // namespace

Optimizer::Optimizer(layers::ParameterList& parameters, const OptimizerConfig& config) : Optimizer(parameters, config, alone(parameters)) {}

Optimizer::Optimizer(layers::ParameterList& parameters, const OptimizerConfig& config, Team team)
    : parameters_(parameters), config_(config), team_(std::move(team)) {
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters.all())
    if (!p->is_trained()) buffers_[p->name] = {p.get(), at::zeros_like(p->value), at::zeros_like(p->value)};
  for (auto& shard : team_.shards) {
    const auto& p = *shard.parameter;
    const bool narrow = p.value.scalar_type() == at::kBFloat16;
    Slot slot{.shard = std::move(shard),
              .master = {},
              .first = {},
              .second = {},
              .takes_muon = takes_muon(p, config),
              .takes_decay = takes_decay(p)};
    slot.master = narrow ? slot.shard.value.to(at::kFloat) : slot.shard.value;
    slot.first = at::zeros_like(slot.master);
    if (!slot.takes_muon) slot.second = at::zeros_like(slot.master);
    slots_.push_back(std::move(slot));
  }
  team_.shards.clear();
  prepare_muon();
}

// On unlike machines all do what all can.
bool Optimizer::iterates_in_bf16() const {
  if (config_.newton_schulz_precision != "auto") return config_.newton_schulz_precision == "bf16";
  const auto& all = parameters_.all();
  if (std::none_of(all.begin(), all.end(), [](const auto& p) { return p->value.scalar_type() == at::kBFloat16; })) return false;
  const auto device = all.front()->value.device();
  const bool can = device::is_gpu(device) || (kernels::sums_bf16_in_fp32() && kernels::gemm_backend() == kernels::GemmBackend::standard);
  if (!team_.everyone || team_.everyone->size() == 1) return can;
  const auto least = at::full({1}, can ? 1 : 0, at::TensorOptions().dtype(at::kInt).device(device));
  team_.everyone->all_reduce(least, comm::Reduction::min);
  return least.item<int>() != 0;
}

// Every rank must come to the same groups in the same order, also one that owns nothing of some.
void Optimizer::prepare_muon() {
  if (config_.name == "muon" && iterates_in_bf16()) iterates_ = Iterates::bf16;
  std::vector<comm::Group*> groups;
  std::map<comm::Group*, MuonGroup> by_group;
  for (const auto& p : parameters_.all()) {
    if (!p->is_trained() || !takes_muon(*p, config_)) continue;
    auto* group = team_.owners_of ? &team_.owners_of(*p) : nullptr;
    if (group && group->size() == 1) group = nullptr;
    if (by_group.emplace(group, MuonGroup{}).second) groups.push_back(group);
  }
  for (auto& slot : slots_) {
    if (!slot.takes_muon) continue;
    auto* group = team_.owners_of ? &team_.owners_of(*slot.shard.parameter) : nullptr;
    by_group.at(group && group->size() > 1 ? group : nullptr).slots.push_back(&slot);
  }
  for (auto* group : groups) {
    auto& entry = muon_groups_.emplace_back(std::move(by_group.at(group)));
    if (!group) continue;
    std::vector<const parallel::Shard*> shards;
    for (const auto* slot : entry.slots) shards.push_back(&slot->shard);
    entry.exchange =
        std::make_unique<parallel::MatrixExchange>(parameters_, shards, *group, config_.spread_orthogonalisation,
                                                   [steps = config_.newton_schulz_steps, how = iterates_](int64_t rows, int64_t cols) {
                                                     return newton_schulz_flops(rows, cols, steps, how);
                                                   });
  }
}

GradientNorm Optimizer::gradient_norm() const {
  const base::WorkScope scope("gradient_norm");
  GradientNorm result;
  double squares = 0;
  for (const auto& slot : slots_) {
    if (!slot.shard.is_primary || (!slot.shard.gradient.defined() && !slot.shard.parameter->has_gradient)) continue;
    const double norm = slot.shard.gradient_slice().norm().item<double>();
    if (!std::isfinite(norm) && result.first_nonfinite.empty()) result.first_nonfinite = slot.shard.parameter->name;
    squares += norm * norm;
  }
  if (team_.everyone && team_.everyone->size() > 1) {
    auto& all = *team_.everyone;
    const auto device = parameters_.all().front()->value.device();
    const auto sum = at::full({1}, squares, at::TensorOptions().dtype(at::kDouble).device(device));
    all.all_reduce(sum);
    squares = sum.item<double>();
    if (!std::isfinite(squares)) {
      const auto first = at::full({1}, static_cast<int64_t>(result.first_nonfinite.empty() ? all.size() : all.rank()),
                                  at::TensorOptions().dtype(at::kLong).device(device));
      all.all_reduce(first, comm::Reduction::min);
      if (first.item<int64_t>() < all.size())
        result.first_nonfinite = comm::broadcast_text(all, result.first_nonfinite, static_cast<int>(first.item<int64_t>()), device);
    }
  }
  result.norm = std::sqrt(squares);
  return result;
}

void Optimizer::step(double lr, double norm) {
  const base::WorkScope scope("optimizer");
  const at::NoGradGuard no_grad;
  const double scale = config_.clip > 0 && norm > config_.clip ? config_.clip / norm : 1;
  ++steps_done_;
  for (auto& slot : slots_) {
    auto& p = *slot.shard.parameter;
    if (!slot.shard.gradient.defined() && !p.has_gradient) {
      bool overwrite = false;
      p.gradient_buffer(overwrite).zero_();
    }
    if (!slot.takes_muon) adamw(slot, lr, scale);
  }
  muon(lr, scale);
  parameters_.drop_gradients();
}

void Optimizer::adamw(Slot& slot, double lr, double gradient_scale) {
  kernels::adamw_update(
      slot.master, slot.shard.gradient_slice(), slot.first, slot.second, slot.shard.value,
      {lr, config_.beta1, config_.beta2, config_.eps, slot.takes_decay ? config_.weight_decay : 0, gradient_scale, steps_done_});
}

void Optimizer::muon(double lr, double gradient_scale) {
  if (muon_groups_.empty()) return;
  const base::WorkScope scope("muon");
  std::vector<std::vector<at::Tensor>> directions;
  // All that must travel is on its way before the first orthogonalisation.
  for (const auto& group : muon_groups_) {
    auto& own = directions.emplace_back();
    for (auto* slot : group.slots)
      own.push_back(
          kernels::momentum_update(slot->first, slot->shard.gradient_slice(), config_.momentum, gradient_scale, config_.nesterov));
    if (group.exchange) group.exchange->start(own);
  }
  for (size_t g = 0; g < muon_groups_.size(); ++g) {
    const auto& group = muon_groups_[g];
    orthogonalise(group, directions[g]);
    for (size_t i = 0; i < group.slots.size(); ++i) {
      auto& slot = *group.slots[i];
      const auto& shape = slot.shard.parameter->shape;
      const auto longest = static_cast<double>(std::max(shape[shape.size() - 2], shape.back()));
      const double decay = slot.takes_decay ? config_.weight_decay : 0;
      kernels::apply_direction(slot.master, directions[g][i], slot.shard.value, 1 - lr * decay,
                               lr * config_.rms_match * std::sqrt(longest));
    }
  }
}

void Optimizer::orthogonalise(const MuonGroup& group, std::vector<at::Tensor>& directions) const {
  if (!group.exchange) {
    for (size_t i = 0; i < directions.size(); ++i) directions[i] = directions[i].view(group.slots[i]->shard.parameter->local_shape());
    directions = newton_schulz(directions, config_.newton_schulz_steps, {}, Threads::share_matrices, iterates_);
    for (auto& direction : directions) direction = direction.view(-1);
    return;
  }
  const auto whole = group.exchange->whole();
  const auto results = newton_schulz(whole, config_.newton_schulz_steps, {}, Threads::share_matrices, iterates_);
  for (size_t i = 0; i < whole.size(); ++i) whole[i].copy_(results[i]);
  group.exchange->finish(newton_schulz(group.exchange->gathered(), config_.newton_schulz_steps, {}, Threads::share_products, iterates_));
}

void Optimizer::balance(Parameter& bias, const at::Tensor& counts, int64_t experts) {
  const base::WorkScope scope("optimizer");
  if (config_.balancing_lr == 0) return;
  const at::NoGradGuard no_grad;
  auto& state = buffers_.at(bias.name);
  const int64_t classes = bias.value.size(0);
  const int64_t balanced = config_.balance_skip ? classes : experts;
  const auto loads = counts.to(at::kDouble);
  const double total = loads.narrow(0, 0, balanced).sum().item<double>();
  if (total == 0) return;
  // Descent on (observed share - fair share); facts zaya1 §4.5.
  auto gradient = at::zeros_like(loads);
  gradient.narrow(0, 0, balanced).copy_(loads.narrow(0, 0, balanced) / total - 1.0 / static_cast<double>(balanced));
  const auto g = gradient.to(bias.value.options());
  state.first.mul_(config_.balancing_beta1).add_(g, 1 - config_.balancing_beta1);
  state.second.mul_(config_.balancing_beta2).addcmul_(g, g, 1 - config_.balancing_beta2);
  const double correction1 = 1 - std::pow(config_.balancing_beta1, static_cast<double>(steps_done_));
  const double correction2 = 1 - std::pow(config_.balancing_beta2, static_cast<double>(steps_done_));
  bias.value.addcdiv_(state.first, (state.second / correction2).sqrt_().add_(1e-8), -config_.balancing_lr / correction1);
}

at::Tensor Optimizer::master_of(const Parameter& parameter) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.shard.parameter == &parameter; });
  if (found == slots_.end()) return parameter.value;
  if (!is_all_of(found->shard))
    throw base::ModelError("this rank holds {} of the {} elements of {}", found->shard.size(), parameter.elements(), parameter.name);
  return found->master.view(parameter.shape);
}

std::vector<StateSlice> Optimizer::state() const {
  std::vector<StateSlice> all;
  for (const auto& slot : slots_) {
    const auto& name = slot.shard.parameter->name;
    const auto add = [&](const std::string& prefix, const at::Tensor& flat) {
      all.push_back({prefix + name, slot.shard.parameter->shape, slot.shard.regions(), flat, slot.shard.is_primary});
    };
    add("", slot.master);
    add(slot.takes_muon ? "optimizer.momentum." : "optimizer.first_moment.", slot.first);
    if (!slot.takes_muon) add("optimizer.second_moment.", slot.second);
  }
  for (const auto& [name, buffer] : buffers_) {
    const auto& p = *buffer.parameter;
    const auto add = [&](const std::string& prefix, const at::Tensor& tensor) {
      all.push_back({prefix + p.name, p.shape, tensor::regions_of(p.shape, p.part, 0, tensor.numel()), tensor.view(-1), team_.is_primary});
    };
    add("", p.value.detach());
    add("optimizer.first_moment.", buffer.first);
    add("optimizer.second_moment.", buffer.second);
  }
  return all;
}

void Optimizer::publish_masters() {
  const at::NoGradGuard no_grad;
  for (auto& slot : slots_) {
    if (slot.master.data_ptr() != slot.shard.value.data_ptr()) slot.shard.value.copy_(slot.master);
  }
}

std::string Optimizer::first_nonfinite_weight() const {
  for (const auto& slot : slots_)
    if (!at::isfinite(slot.master).all().item<bool>()) return slot.shard.parameter->name;
  return "";
}

}  // namespace ingot::optim
