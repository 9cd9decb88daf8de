#include "optim/optimizer.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/work_scope.h"
#include "device/device.h"
#include "kernels/exact_sum.h"

namespace ingot::optim {

using layers::Parameter;

bool takes_decay(const Parameter& p) { return p.kind == Parameter::Kind::matrix || p.kind == Parameter::Kind::convolution; }

namespace {

Team alone(const layers::ParameterList& parameters) {
  Team team;
  team.shards = parallel::whole_shards(parameters);
  team.frozen = parallel::frozen_shards(parameters);
  return team;
}

bool is_all_of(const parallel::Shard& shard) { return shard.size() == shard.parameter->elements(); }

}  // namespace

Optimizer::Optimizer(layers::ParameterList& parameters, const OptimizerConfig& config) : Optimizer(parameters, config, alone(parameters)) {}

Optimizer::Optimizer(layers::ParameterList& parameters, const OptimizerConfig& config, Team team)
    : parameters_(parameters), config_(config), team_(std::move(team)), rules_(config) {
  const at::NoGradGuard no_grad;
  if (config.offload) home_ = StateHome(std::make_shared<device::HostStash>(parameters.all().front()->value.device()));
  for (const auto& p : parameters.all())
    if (p->kind == Parameter::Kind::buffer) buffers_[p->name] = {p.get(), {at::zeros_like(p->value), at::zeros_like(p->value)}};
  for (auto& shard : team_.shards) {
    const auto& p = *shard.parameter;
    const bool narrow = p.value.scalar_type() == at::kBFloat16;
    const auto& rule = rules_.of(p);
    Slot slot{.shard = std::move(shard),
              .master = {},
              .state = {},
              .has_master = narrow,
              .weight_decay = takes_decay(p) ? config.weight_decay : 0};
    slot.master = narrow ? home_.settle(slot.shard.value.to(at::kFloat)) : slot.shard.value;
    const auto moments = moments_dtype(config, slot.master.scalar_type());
    for (size_t i = 0; i < rule.state_names().size(); ++i) {
      const auto zeros = at::zeros_like(slot.shard.value, slot.shard.value.options().dtype(moments));
      slot.state.push_back(home_.settle(zeros));
    }
    slots_.push_back(std::move(slot));
  }
  team_.shards.clear();
  add_matrices();
  for (const auto& rule : rules_.all()) {
    RuleShare share{.parameters = parameters, .taken = {}, .slots = {}, .matrices = {}, .home = home_};
    for (const auto& p : parameters.all())
      if (p->is_trained() && &rules_.of(*p) == rule.get()) share.taken.push_back(p.get());
    for (auto& slot : slots_)
      if (&rules_.of(*slot.shard.parameter) == rule.get()) share.slots.push_back(&slot);
    for (auto& matrices : matrices_)
      if (&rules_.of(*matrices.parameter) == rule.get()) share.matrices.push_back(&matrices);
    rule->prepare(share, team_);
  }
}

// The rank that owns the first element of the first matrix that is here saves the states of all.
void Optimizer::add_matrices() {
  for (const auto& p : parameters_.all()) {
    if (!p->is_trained()) continue;
    const auto states = rules_.of(*p).matrix_states(*p);
    if (states.empty()) continue;
    MatrixSlot matrices{.parameter = p.get(), .first_matrix = 0, .state = {}};
    if (p->shape.size() == 3 && !p->part.empty()) matrices.first_matrix = p->part[0].front().begin;
    for (const auto& state : states) {
      auto shape = state.shape;
      shape.insert(shape.begin(), matrices_here(*p));
      matrices.state.push_back(at::zeros(shape, p->value.options().dtype(p->wide_type()).requires_grad(false)));
    }
    for (const auto& slot : slots_) {
      if (slot.shard.parameter != p.get() || slot.shard.begin != 0 || !slot.shard.is_primary) continue;
      const auto offset = slot.shard.regions().front().box.offset;
      matrices.is_primary = matrices.is_primary || (offset[offset.size() - 1] == 0 && offset[offset.size() - 2] == 0);
    }
    matrices_.push_back(std::move(matrices));
  }
}

GradientNorm Optimizer::gradient_norm() const {
  const base::WorkScope scope("gradient_norm", base::WorkKind::gradient_norm);
  GradientNorm result;
  std::vector<const Slot*> counted;
  std::vector<at::Tensor> gradients;
  for (const auto& slot : slots_) {
    if (!slot.shard.is_primary || (!slot.shard.gradient.defined() && !slot.shard.parameter->has_gradient)) continue;
    counted.push_back(&slot);
    gradients.push_back(slot.shard.gradient_slice());
  }
  const auto on_host = kernels::square_sums(gradients).cpu();  // all at once: a read waits for the device
  const auto parts = on_host.sum(0);
  for (size_t i = 0; i < counted.size() && result.first_nonfinite.empty(); ++i)
    if (!on_host[static_cast<int64_t>(i)].isfinite().all().item<bool>()) result.first_nonfinite = counted[i]->shard.parameter->name;
  const bool is_shared = team_.everyone && team_.everyone->size() > 1;
  if (is_shared) team_.everyone->all_reduce(parts);
  const double squares = parts.sum().item<double>();
  if (is_shared && !std::isfinite(squares)) {
    auto& all = *team_.everyone;
    const auto first = at::full({1}, static_cast<int64_t>(result.first_nonfinite.empty() ? all.size() : all.rank()), at::kLong);
    all.all_reduce(first, comm::Reduction::min);
    if (first.item<int64_t>() < all.size())
      result.first_nonfinite = comm::broadcast_text(all, result.first_nonfinite, static_cast<int>(first.item<int64_t>()));
  }
  result.norm = std::sqrt(squares);
  return result;
}

void Optimizer::step(double lr, double norm) {
  const base::WorkScope scope("optimizer", base::WorkKind::adamw);
  const at::NoGradGuard no_grad;
  const double scale = config_.clip > 0 && norm > config_.clip ? config_.clip / norm : 1;
  ++steps_done_;
  for (auto& slot : slots_) {
    auto& p = *slot.shard.parameter;
    if (!slot.shard.gradient.defined() && !p.has_gradient) {
      bool overwrite = false;
      p.gradient_buffer(overwrite).zero_();
    }
  }
  for (const auto& rule : rules_.all()) rule->update({lr, scale, steps_done_});
  parameters_.drop_gradients();
}

void Optimizer::scale_rows(const Parameter& parameter, const at::Tensor& factors) {
  const at::NoGradGuard no_grad;
  home_.wait();
  const int64_t columns = parameter.local_elements() / factors.numel();
  for (auto& slot : slots_) {
    if (slot.shard.parameter != &parameter || slot.shard.size() == 0) continue;
    const int64_t first = slot.shard.begin / columns, rows = (slot.shard.end - 1) / columns + 1 - first;
    const auto by_element =
        factors.narrow(0, first, rows).repeat_interleave(columns).narrow(0, slot.shard.begin - first * columns, slot.shard.size());
    slot.master.mul_(by_element.to(slot.master.options()));
    if (slot.has_master) slot.shard.value.copy_(slot.master);
  }
}

void Optimizer::balance(Parameter& bias, const at::Tensor& counts, int64_t experts) {
  const base::WorkScope scope("optimizer", base::WorkKind::adamw);
  if (config_.balancing_lr == 0 || bias.is_frozen) return;
  const at::NoGradGuard no_grad;
  move_balancing_bias(bias.value, buffers_.at(bias.name).state, counts, experts, steps_done_, config_);
}

at::Tensor Optimizer::master_of(const Parameter& parameter) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.shard.parameter == &parameter; });
  if (found == slots_.end()) return parameter.value;
  home_.wait();
  if (!is_all_of(found->shard))
    throw base::ModelError("this rank holds {} of the {} elements of {}", found->shard.size(), parameter.elements(), parameter.name);
  return found->master.view(parameter.shape);
}

std::vector<std::pair<const Parameter*, at::Tensor>> Optimizer::masters() const {
  home_.wait();
  std::vector<std::pair<const Parameter*, at::Tensor>> all;
  for (const auto& slot : slots_)
    if (slot.has_master) all.emplace_back(slot.shard.parameter, slot.master);
  return all;
}

void Optimizer::forget_moments() {
  const at::NoGradGuard no_grad;
  home_.wait();
  for (auto& slot : slots_)
    for (auto& state : slot.state) state.zero_();
  for (auto& matrices : matrices_)
    for (auto& state : matrices.state) state.zero_();
  steps_done_ = 0;
}

std::vector<StateSlice> Optimizer::state() const {
  home_.wait();
  std::vector<StateSlice> all;
  for (const auto& slot : slots_) {
    const auto& name = slot.shard.parameter->name;
    const auto add = [&](const std::string& prefix, const at::Tensor& flat) {
      all.push_back({prefix + name, slot.shard.parameter->shape, slot.shard.regions(), flat, slot.shard.is_primary});
    };
    add("", slot.master);
    const auto names = rules_.of(*slot.shard.parameter).state_names();
    for (size_t i = 0; i < names.size(); ++i) add("optimizer." + names[i] + ".", slot.state[i]);
  }
  for (const auto& matrices : matrices_) {
    const auto& p = *matrices.parameter;
    const auto states = rules_.of(p).matrix_states(p);
    for (size_t i = 0; i < states.size(); ++i) {
      // Of a stack [matrices, shape...], else [shape...].
      auto shape = states[i].shape;
      tensor::Part part;
      if (p.shape.size() == 3) {
        if (!p.part.empty()) {
          part = {p.part[0]};
          for (const int64_t extent : shape) part.push_back({{0, extent}});
        }
        shape.insert(shape.begin(), p.shape[0]);
      }
      const auto flat = matrices.state[i].view(-1);
      all.push_back({"optimizer." + states[i].name + "." + p.name, shape, tensor::regions_of(shape, part, 0, flat.numel()), flat,
                     matrices.is_primary});
    }
  }
  for (const auto& shard : team_.frozen)
    all.push_back({shard.parameter->name, shard.parameter->shape, shard.regions(), shard.value, shard.is_primary});
  for (const auto& [name, buffer] : buffers_) {
    const auto& p = *buffer.parameter;
    const auto add = [&](const std::string& prefix, const at::Tensor& tensor) {
      all.push_back({prefix + p.name, p.shape, tensor::regions_of(p.shape, p.part, 0, tensor.numel()), tensor.view(-1), team_.is_primary});
    };
    add("", p.value.detach());
    add("optimizer.first_moment.", buffer.state.first);
    add("optimizer.second_moment.", buffer.state.second);
  }
  return all;
}

void Optimizer::publish_masters() {
  const at::NoGradGuard no_grad;
  home_.wait();
  for (auto& slot : slots_)
    if (slot.has_master) slot.shard.value.copy_(slot.master);
}

std::string Optimizer::first_nonfinite_weight() const {
  home_.wait();
  for (const auto& slot : slots_)
    if (!at::isfinite(slot.master).all().item<bool>()) return slot.shard.parameter->name;
  return "";
}

}  // namespace ingot::optim
