// How a router's balancing bias moves against the load of its experts, after each update. e: of each expert, its share of the choices
// minus an even share, times the number of experts.
#pragma once

#include "device/aten.h"
#include "optim/config.h"

namespace ingot::optim {

enum class BalancingRule {
  adamw,  // AdamW descent on the share minus an even one (ZAYA1-8B, arXiv 2605.05365, eq. 5)
  sign,   // bias -= lr sign(e) (arXiv 2408.15664, algorithm 1; DeepSeek-V3)
  pid     // bias -= lr (integral e + proportional (e - e1) + derivative (e - 2 e1 + e2)), e1 and e2 being those of the steps before
};
const std::vector<std::string>& balancing_rule_names();

/// Two tensors like the bias, 0 at the start: AdamW's moments, PID's e1 and e2, nothing of sign.
struct BalancingState {
  at::Tensor first, second;
};

/// Moves `bias` [classes] in place. `counts` int64 [classes] on the host: choices of each class; the first `experts` are experts. `step`:
/// updates done, this one included.
void move_balancing_bias(const at::Tensor& bias, const BalancingState& state, const at::Tensor& counts, int64_t experts, int64_t step,
                         const OptimizerConfig& config);

}  // namespace ingot::optim
