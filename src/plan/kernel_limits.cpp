#include "plan/kernel_limits.h"

#include <algorithm>

#include "layers/dtype.h"

namespace ingot::plan {

std::vector<KernelLimit> kernel_limits(const std::vector<kernels::Operator>& all, const schedule::Cluster& cluster,
                                       const std::string& dtype) {
  const auto& rates = cluster.rates(dtype);
  std::vector<KernelLimit> limits;
  for (const auto& op : all) {
    if (!op.cost || !op.measured || std::ranges::find(op.fused_on, device::Target::gpu) == op.fused_on.end()) continue;
    const auto [rows, width] = op.measured(/*quick=*/false).back();
    const auto cost = op.cost({.rows = rows, .width = width, .dtype = layers::precision_named(dtype).dtype});
    for (const bool is_backward : {false, true}) {
      const auto& pass = is_backward ? cost.backward : cost.forward;
      const auto moved = static_cast<double>(pass.read_bytes + pass.written_bytes);
      if (moved == 0) continue;
      limits.push_back({.name = std::string(op.name),
                        .is_backward = is_backward,
                        .rows = rows,
                        .width = width,
                        .moved_bytes = moved,
                        .flops = pass.flops,
                        .memory_s = moved / cluster.memory_bytes_per_s,
                        .compute_s = pass.flops / rates.gemm_flops_per_s});
    }
  }
  return limits;
}

}  // namespace ingot::plan
