// For tests: a machine whose rates are known by a formula.
#pragma once

#include "plan/profile.h"

namespace ingot::report {

/// GEMMs at 100 GFLOP/s in fp32 (twice that in bf16) of every second size, triad at 80 GB/s up to 1 MiB arrays and 20 GB/s beyond,
/// attention at 40 GFLOP/s but for its shortest length, a kernel, and an all-reduce of 10 us + bytes / 1 GB/s.
inline plan::MachineProfile profile_of_formulas() {
  plan::MachineProfile p;
  p.host = "node7";
  p.cpu = "CPU of a test";
  p.torch = "2.11.0";
  p.program = "build-1";
  p.date = "2026-01-02T03:04:05Z";
  p.cores = p.threads = 4;
  p.commands = {"ingot bench all"};
  p.operation_s = 3e-6;
  for (const char* dtype : {"fp32", "bf16"}) {
    const double peak = dtype == std::string("bf16") ? 2e11 : 1e11;
    for (int m = 0; m < 2; ++m)
      for (int n = 0; n < 4; ++n)
        for (int k = 0; k < 4; ++k) {
          if ((m + n + k) % 2 != 0) continue;
          p.gemm.push_back({dtype, "plain", "forward", 64 << m, 32 << n, 32 << k, n + k == 6 ? peak : peak / 4});
        }
    for (const int64_t seq : {128, 512, 2048}) {
      const double flops = 4.0 * (static_cast<double>(seq) * (static_cast<double>(seq) + 1) / 2) * 8 * 64;
      const double seconds = flops / (seq == 128 ? 1e10 : 4e10);
      p.attention.push_back({dtype, 1, seq, 8, 8, 64, seconds, 4 * seconds});
    }
    p.kernels.push_back({"rms_norm", dtype, 1000, 1000, 1, 1e-3, 2e-3, 8e6, 1.2e7});
    p.kernels.push_back({"router", dtype, 1000, 1000, 1, 1e-3, 2e-3});
  }
  p.within_steps = {{"fp32", "matmul", 0.06, 0.05}, {"fp32", "unattributed", 0.001, 0}, {"bf16", "norms", 0.003, 0.002}};
  for (const char* operation : {"copy", "scale", "add", "triad", "dot"})
    for (int64_t bytes = 1 << 14; bytes <= 1 << 24; bytes *= 4) p.memory.push_back({operation, bytes, bytes <= (1 << 20) ? 8e10 : 2e10});
  for (int64_t bytes = 8; bytes <= 1 << 24; bytes *= 8)
    p.collectives.push_back({"all_reduce", "fp32", "neighbours", 4, 1, bytes, 1e-5 + static_cast<double>(bytes) / 1e9});
  return p;
}

}  // namespace ingot::report
