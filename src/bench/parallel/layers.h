// Sweeps over layers: each layer has methods with a schedule of their own, and others that are alike for it.
#pragma once

#include <string>
#include <vector>

#include "schedule/sweep.h"

namespace ingot::bench {

/// `sweep` once for each layer, with the methods that have a schedule of their own for it. No layers: all. Throws UsageError when nothing
/// is left, and for unknown layers.
std::vector<schedule::Sweep> by_layer(const schedule::Sweep& sweep, const std::vector<std::string>& layers);

void append(schedule::SweepResult& all, schedule::SweepResult more);

}  // namespace ingot::bench
