// What bounds an operation on a machine: its arithmetic intensity against the machine's balance, both from a profile. Pure functions of
// values, free of torch.
#pragma once

#include <optional>
#include <string>

#include "plan/profile.h"

namespace ingot::plan {

/// 2 m n k of each group, and that over the bytes of both operands and the result, each moved once; grad_weight adds to fp32, which is
/// read and written.
double flops_of(const GemmRate& gemm);
double intensity_of(const GemmRate& gemm);

/// Forward by the convention of layers/cost.h, 4 x visible pairs x heads x head_dim; backward is twice that.
double flops_of(const AttentionTime& attention, bool backward);
/// FLOPs over the bytes of q, k, v and the output, each moved once. Backward moves twice as much for twice the FLOPs.
double intensity_of(const AttentionTime& attention);

/// Of triad at the largest size, else of another of BabelStream's operations: memory rather than caches. 0 when none was measured.
double memory_bytes_per_s(const MachineProfile& profile);

/// What a machine computes while it moves a byte.
struct Balance {
  std::string dtype;
  double flops_per_s = 0;  // the best plain GEMM
  double bytes_per_s = 0;  // memory_bytes_per_s
  double flops_per_byte() const { return flops_per_s / bytes_per_s; }
};
/// Nothing without GEMMs of the dtype or without memory rates.
std::optional<Balance> balance_of(const MachineProfile& profile, const std::string& dtype);

/// The sequence length from which on attention of this shape (dtype, heads, kv heads, window; its own length does not count) has
/// `flops_per_byte` or more, at least 1. Nothing when its window keeps it below at any length.
std::optional<double> turning_seq(const AttentionTime& shape, double flops_per_byte);

}  // namespace ingot::plan
