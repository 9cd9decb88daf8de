// Times operators (kernels/operator.h) on many tensors in turn as a model's layers do it: all
// forward passes, then all backward passes in reverse order, so that backward finds its tensors in memory, not in a cache.
#pragma once

#include <string>

#include "bench/stopwatch.h"
#include "device/aten.h"
#include "plan/profile.h"

namespace ingot::bench {

/// The operator of that name; throws UsageError where there is none.
plan::KernelTime measure_kernel(const std::string& name, const std::string& dtype, int64_t rows, int64_t width, const Repeats& repeats,
                                at::Device device);

}  // namespace ingot::bench
