#include "optim/balancing.h"

#include <algorithm>
#include <cmath>

#include "device/device.h"

namespace ingot::optim {

const std::vector<std::string>& balancing_rule_names() {
  static const std::vector<std::string> names = {"adamw", "sign", "pid"};
  return names;
}

void move_balancing_bias(const at::Tensor& bias, const BalancingState& state, const at::Tensor& counts, int64_t experts, int64_t step,
                         const OptimizerConfig& c) {
  const int64_t balanced = c.balance_skip ? bias.size(0) : experts;
  const auto loads = counts.to(at::kDouble);
  const double total = loads.narrow(0, 0, balanced).sum().item<double>();
  if (total == 0) return;
  // The share minus an even one; 0 for what is not balanced.
  auto excess = at::zeros_like(loads);
  excess.narrow(0, 0, balanced).copy_(loads.narrow(0, 0, balanced) / total - 1.0 / static_cast<double>(balanced));
  const auto& names = balancing_rule_names();
  const auto rule = static_cast<BalancingRule>(std::find(names.begin(), names.end(), c.balancing) - names.begin());
  const double unit = rule == BalancingRule::pid ? static_cast<double>(balanced) : 1;
  const auto e = device::to_device((excess * unit).to(bias.scalar_type()), bias.device());
  switch (rule) {
    case BalancingRule::adamw: {
      state.first.mul_(c.balancing_beta1).add_(e, 1 - c.balancing_beta1);
      state.second.mul_(c.balancing_beta2).addcmul_(e, e, 1 - c.balancing_beta2);
      const double correction1 = 1 - std::pow(c.balancing_beta1, static_cast<double>(step));
      const double correction2 = 1 - std::pow(c.balancing_beta2, static_cast<double>(step));
      bias.addcdiv_(state.first, (state.second / correction2).sqrt_().add_(1e-8), -c.balancing_lr / correction1);
      break;
    }
    case BalancingRule::sign: bias.add_(e.sign(), -c.balancing_lr); break;
    case BalancingRule::pid: {
      const auto change = c.balancing_integral * e + c.balancing_proportional * (e - state.first) +
                          c.balancing_derivative * (e - 2 * state.first + state.second);
      bias.add_(change, -c.balancing_lr);
      state.second.copy_(state.first);
      state.first.copy_(e);
      break;
    }
  }
}

}  // namespace ingot::optim
