// Measures one thing at a time: a matrix product, attention, a stream over memory, as the trainer does them. All run on the
// calling thread's device with torch's present number of threads; nothing else should run meanwhile.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "bench/stopwatch.h"
#include "plan/profile.h"
#include "plan/rates.h"

namespace ingot::bench {

/// Sizes of a linear layer's product; the pass says which of its three products is measured.
plan::GemmRate measure_gemm(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, const Repeats& repeats,
                            at::Device device);

/// Causal attention through kernels/attention.h.
plan::AttentionTime measure_attention(const std::string& dtype, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                      int64_t head_dim, const Repeats& repeats, at::Device device);

/// copy, scale, add, triad or dot (BabelStream) on fp32 arrays of `bytes` each.
plan::MemoryRate measure_memory(const std::string& operation, int64_t bytes, const Repeats& repeats, at::Device device);

/// Forward and backward of a linear layer so small that only its fixed costs show, in seconds.
double measure_operation(const Repeats& repeats, at::Device device);

}  // namespace ingot::bench
