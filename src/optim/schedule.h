// Learning-rate schedules: pure functions of the step.
#pragma once

#include <cstdint>

#include "optim/config.h"

namespace ingot::optim {

/// Learning rate of step `step` (from 0) of a phase of `steps` steps whose peak is `peak`.
/// Warm-up: peak * (step + 1) / warmup_steps. Then, with t = (step - warmup + 1) / (steps - warmup) in (0, 1]:
/// linear and cosine fall to final_lr_fraction * peak at the last step; wsd stays at the peak and falls linearly over its
/// last decay_fraction of all steps.
double learning_rate(const OptimizerConfig& config, double peak, int64_t step, int64_t steps);

}  // namespace ingot::optim
