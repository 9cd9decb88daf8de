// Times the kernels and small layers that layers/workload.h names, on many tensors in turn as a model's layers do it: all
// forward passes, then all backward passes in reverse order, so that backward finds its tensors in memory, not in a cache.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "bench/stopwatch.h"
#include "plan/profile.h"

namespace ingot::bench {

struct KernelSizes {
  std::string name;
  std::vector<int64_t> rows, widths;
};

/// Every kernel with sizes worth measuring; `quick`: few.
std::vector<KernelSizes> kernel_sizes(bool quick);

/// What workloads call "rms_norm", "cca_mix", "router", …; throws UsageError for a name that is none.
plan::KernelTime measure_kernel(const std::string& name, const std::string& dtype, int64_t rows, int64_t width, const Repeats& repeats,
                                at::Device device);

}  // namespace ingot::bench
