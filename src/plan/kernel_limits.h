// The least time that a fused kernel could take on a device, on paper: the bytes and FLOPs that its operator states, over what the device
// reads and multiplies. A measured time stands beside it as a share of that.
#pragma once

#include <string>
#include <vector>

#include "kernels/operator.h"
#include "schedule/cluster.h"

namespace ingot::plan {

struct KernelLimit {
  std::string name;
  bool is_backward = false;
  int64_t rows = 0, width = 0;  // as profiles name sizes (kernels/operator.h)
  double moved_bytes = 0, flops = 0;
  /// Of memory and of multiplications; the kernel takes at least the longer one.
  double memory_s = 0, compute_s = 0;
  double least_s() const { return memory_s > compute_s ? memory_s : compute_s; }
  bool is_bound_by_memory() const { return memory_s >= compute_s; }
};

/// Both passes of every operator of `all` that states a cost and is fused on GPUs, at the largest size that benchmarks measure, in a dtype
/// that the cluster has rates of. Throws ProfileError.
std::vector<KernelLimit> kernel_limits(const std::vector<kernels::Operator>& all, const schedule::Cluster& cluster,
                                       const std::string& dtype);

}  // namespace ingot::plan
