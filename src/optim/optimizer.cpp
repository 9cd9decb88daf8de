#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "kernels/update.h"
#include "optim/newton_schulz.h"

namespace ingot::optim {

using layers::Parameter;

bool takes_muon(const Parameter& p, const OptimizerConfig& config) { return config.name == "muon" && p.kind == Parameter::Kind::matrix; }

bool takes_decay(const Parameter& p) { return p.kind == Parameter::Kind::matrix || p.kind == Parameter::Kind::convolution; }

Optimizer::Optimizer(layers::ParameterList& parameters, const OptimizerConfig& config) : config_(config) {
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters.all()) {
    if (!p->is_trained()) {
      balances_[p->name] = {at::zeros_like(p->value), at::zeros_like(p->value)};
      continue;
    }
    const bool narrow = p->value.scalar_type() == at::kBFloat16;
    Slot slot{.parameter = p.get(),
              .master = narrow ? p->value.detach().to(at::kFloat) : p->value.detach(),
              .takes_muon = takes_muon(*p, config),
              .takes_decay = takes_decay(*p)};
    slot.first = at::zeros_like(slot.master);
    if (!slot.takes_muon) slot.second = at::zeros_like(slot.master);
    slots_.push_back(std::move(slot));
  }
}

GradientNorm Optimizer::gradient_norm() const {
  GradientNorm result;
  double squares = 0;
  for (const auto& slot : slots_) {
    if (!slot.parameter->has_gradient) continue;
    const double norm = slot.parameter->grad.norm().item<double>();
    if (!std::isfinite(norm) && result.first_nonfinite.empty()) result.first_nonfinite = slot.parameter->name;
    squares += norm * norm;
  }
  result.norm = std::sqrt(squares);
  return result;
}

void Optimizer::step(double lr, double norm) {
  const at::NoGradGuard no_grad;
  const double scale = config_.clip > 0 && norm > config_.clip ? config_.clip / norm : 1;
  ++steps_done_;
  for (auto& slot : slots_) {
    if (!slot.parameter->has_gradient) {
      bool overwrite = false;
      slot.parameter->gradient_buffer(overwrite).zero_();
    }
    if (!slot.takes_muon) adamw(slot, lr, scale);
  }
  muon(lr, scale);
  for (auto& slot : slots_) slot.parameter->drop_gradient();
}

void Optimizer::adamw(Slot& slot, double lr, double gradient_scale) {
  kernels::adamw_update(
      slot.master, slot.parameter->grad, slot.first, slot.second, slot.parameter->value,
      {lr, config_.beta1, config_.beta2, config_.eps, slot.takes_decay ? config_.weight_decay : 0, gradient_scale, steps_done_});
}

void Optimizer::muon(double lr, double gradient_scale) {
  std::vector<Slot*> slots;
  std::vector<at::Tensor> directions;
  for (auto& slot : slots_) {
    if (!slot.takes_muon) continue;
    slots.push_back(&slot);
    directions.push_back(kernels::momentum_update(slot.first, slot.parameter->grad, config_.momentum, gradient_scale, config_.nesterov));
  }
  directions = newton_schulz(directions, config_.newton_schulz_steps);
  for (size_t i = 0; i < slots.size(); ++i) {
    const auto& shape = slots[i]->parameter->shape;
    const auto longest = static_cast<double>(std::max(shape[shape.size() - 2], shape.back()));
    const double decay = slots[i]->takes_decay ? config_.weight_decay : 0;
    kernels::apply_direction(slots[i]->master, directions[i], slots[i]->parameter->value, 1 - lr * decay,
                             lr * config_.rms_match * std::sqrt(longest));
  }
}

void Optimizer::balance(Parameter& bias, const at::Tensor& counts, int64_t experts) {
  if (config_.balancing_lr == 0) return;
  const at::NoGradGuard no_grad;
  auto& state = balances_.at(bias.name);
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

const at::Tensor& Optimizer::master_of(const Parameter& parameter) const {
  const auto found = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) { return slot.parameter == &parameter; });
  return found == slots_.end() ? parameter.value : found->master;
}

std::map<std::string, at::Tensor> Optimizer::state() const {
  std::map<std::string, at::Tensor> all;
  for (const auto& slot : slots_) {
    const auto& name = slot.parameter->name;
    if (slot.takes_muon) {
      all["optimizer.momentum." + name] = slot.first;
    } else {
      all["optimizer.first_moment." + name] = slot.first;
      all["optimizer.second_moment." + name] = slot.second;
    }
  }
  for (const auto& [name, balance] : balances_) {
    all["optimizer.first_moment." + name] = balance.first;
    all["optimizer.second_moment." + name] = balance.second;
  }
  return all;
}

void Optimizer::publish_masters() {
  const at::NoGradGuard no_grad;
  for (auto& slot : slots_) {
    if (slot.master.data_ptr() != slot.parameter->value.data_ptr()) slot.parameter->value.copy_(slot.master);
  }
}

}  // namespace ingot::optim
