#include "bench/shape_probe.h"

#include <map>

namespace ingot::bench {

std::vector<plan::GemmRate> measure_neighbours(const ShapeProbe& probe, const std::function<bool(int)>& on_round) {
  // Two calls at a time: the first brings the operands in.
  const Repeats once{.warmup = 1, .least = 2, .most = 2, .enough_s = 0, .give_up_s = 0};
  std::map<int64_t, std::vector<double>> rates;
  for (int round = 0; round < probe.rounds; ++round) {
    if (on_round && !on_round(round)) break;
    for (const int64_t n : probe.n)
      rates[n].push_back(measure_gemm(probe.dtype, plan::Pass::forward, probe.m, n, probe.k, once, at::Device(probe.device)).flops_per_s);
  }
  std::vector<plan::GemmRate> neighbours;
  for (const auto& [n, of_size] : rates) neighbours.push_back({probe.dtype, "plain", "forward", probe.m, n, probe.k, median(of_size)});
  return neighbours;
}

}  // namespace ingot::bench
