#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace ingot::optim {

double learning_rate(const OptimizerConfig& c, double peak, int64_t step, int64_t steps) {
  if (step < c.warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(c.warmup_steps);
  const auto rest = static_cast<double>(std::max<int64_t>(1, steps - c.warmup_steps));
  const double t = std::clamp(static_cast<double>(step - c.warmup_steps + 1) / rest, 0.0, 1.0);
  const double floor = c.final_lr_fraction;
  if (c.schedule == "cosine") return peak * (floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * t)));
  if (c.schedule == "linear") return peak * (1 - (1 - floor) * t);
  if (c.schedule == "wsd") {
    const double decay_steps = std::max(1.0, c.decay_fraction * static_cast<double>(steps));
    const double into_decay = static_cast<double>(step + 1) - (static_cast<double>(steps) - decay_steps);
    return peak * (1 - (1 - floor) * std::clamp(into_decay / decay_steps, 0.0, 1.0));
  }
  return peak;
}

}  // namespace ingot::optim
