#include "optim/optimizer.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "optim/newton_schulz.h"

namespace ingot::optim {

using layers::Parameter;

bool takes_muon(const Parameter& p, const OptimizerConfig& config) { return config.name == "muon" && p.kind == Parameter::Kind::matrix; }

bool takes_decay(const Parameter& p) { return p.kind == Parameter::Kind::matrix || p.kind == Parameter::Kind::convolution; }

Optimizer::Optimizer(layers::ParameterList& parameters, const OptimizerConfig& config) : config_(config) {
  const at::NoGradGuard no_grad;
  for (const auto& p : parameters.all()) {
    if (!p->is_trained()) {
      balances_[p->name] = {at::zeros_like(p->value), at::zeros_like(p->value), 0};
      continue;
    }
    const bool narrow = p->value.scalar_type() == at::kBFloat16;
    Slot slot{.parameter = p.get(), .master = narrow ? p->value.detach().to(at::kFloat) : p->value.detach(), .muon = takes_muon(*p, config), .decay = takes_decay(*p)};
    slot.first = at::zeros_like(slot.master);
    if (!slot.muon) slot.second = at::zeros_like(slot.master);
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
    slot.muon ? muon(slot, lr, scale) : adamw(slot, lr, scale);
    if (slot.master.data_ptr() != slot.parameter->value.data_ptr()) slot.parameter->value.copy_(slot.master);
    slot.parameter->drop_gradient();
  }
}

void Optimizer::adamw(Slot& slot, double lr, double gradient_scale) {
  const auto grad = gradient_scale == 1 ? slot.parameter->grad : slot.parameter->grad * gradient_scale;
  if (slot.decay && config_.weight_decay > 0) slot.master.mul_(1 - lr * config_.weight_decay);
  slot.first.mul_(config_.beta1).add_(grad, 1 - config_.beta1);
  slot.second.mul_(config_.beta2).addcmul_(grad, grad, 1 - config_.beta2);
  const double correction1 = 1 - std::pow(config_.beta1, static_cast<double>(steps_done_));
  const double correction2 = 1 - std::pow(config_.beta2, static_cast<double>(steps_done_));
  const auto denominator = (slot.second / correction2).sqrt_().add_(config_.eps);
  slot.master.addcdiv_(slot.first, denominator, -lr / correction1);
}

void Optimizer::muon(Slot& slot, double lr, double gradient_scale) {
  const auto& grad = slot.parameter->grad;
  slot.first.mul_(config_.momentum).add_(grad, gradient_scale);
  const auto direction = newton_schulz(config_.nesterov ? (grad * gradient_scale).add_(slot.first, config_.momentum) : slot.first, config_.newton_schulz_steps);
  const auto rows = static_cast<double>(grad.size(-2)), cols = static_cast<double>(grad.size(-1));
  if (slot.decay && config_.weight_decay > 0) slot.master.mul_(1 - lr * config_.weight_decay);
  slot.master.sub_(direction, lr * config_.rms_match * std::sqrt(std::max(rows, cols)));
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
  ++state.steps;
  state.first.mul_(config_.balancing_beta1).add_(g, 1 - config_.balancing_beta1);
  state.second.mul_(config_.balancing_beta2).addcmul_(g, g, 1 - config_.balancing_beta2);
  const double correction1 = 1 - std::pow(config_.balancing_beta1, static_cast<double>(state.steps));
  const double correction2 = 1 - std::pow(config_.balancing_beta2, static_cast<double>(state.steps));
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
    if (slot.muon) {
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
  for (auto& [name, balance] : balances_) balance.steps = steps_done_;
}

int64_t Optimizer::state_bytes() const {
  int64_t bytes = 0;
  for (const auto& slot : slots_) {
    if (slot.master.data_ptr() != slot.parameter->value.data_ptr()) bytes += static_cast<int64_t>(slot.master.nbytes());
    bytes += static_cast<int64_t>(slot.first.nbytes() + (slot.second.defined() ? slot.second.nbytes() : 0));
  }
  return bytes;
}

}  // namespace ingot::optim
