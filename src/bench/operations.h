// Measures one thing at a time: a GEMM, attention, a stream over memory, as the trainer does them. All run on the
// calling thread's device with torch's present number of threads; nothing else should run meanwhile.
#pragma once

#include <string>
#include <vector>

#include "bench/stopwatch.h"
#include "device/aten.h"
#include "plan/profile.h"
#include "plan/rates.h"

namespace ingot::bench {

/// Sizes of a linear layer's GEMM; the pass says which of its three GEMMs is measured.
plan::GemmRate measure_gemm(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, const Repeats& repeats,
                            at::Device device);

/// `groups` GEMMs [m, k] x [k, n] in one call, as the states of linear attention are multiplied.
plan::GemmRate measure_batched(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, int64_t groups,
                               const Repeats& repeats, at::Device device);

/// GEMMs of `groups` experts as layers/experts.cpp calls them, one grouped GEMM where takes_grouped_matmul() says so and else all in one
/// call, on rows that are shared_out. m, of grad_weight k, is the mean number of rows.
plan::GemmRate measure_grouped(const std::string& dtype, plan::Pass pass, int64_t m, int64_t n, int64_t k, int64_t groups, double imbalance,
                               const Repeats& repeats, at::Device device);

/// `rows` over `groups` by a power law, largest share first, which is `imbalance` (1 to groups) times the mean; 1: evenly. They add up to
/// `rows`.
std::vector<int64_t> shared_out(int64_t rows, int64_t groups, double imbalance);

/// Causal attention through kernels/attention.h. window 0: none.
plan::AttentionTime measure_attention(const std::string& dtype, int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads,
                                      int64_t head_dim, const Repeats& repeats, at::Device device, int64_t window = 0);

/// BabelStream's copy, scale, add, triad or dot, or read (a sum) or write, on fp32 arrays of `bytes` each.
plan::MemoryRate measure_memory(const std::string& operation, int64_t bytes, const Repeats& repeats, at::Device device);

/// The names of those, and of what measure_transfer knows.
const std::vector<std::string>& memory_operations();
const std::vector<std::string>& transfer_operations();

/// host_to_device_pinned, device_to_host_pageable and so on: a copy of `bytes` between the host and `device`, which must not be a CPU.
plan::MemoryRate measure_transfer(const std::string& operation, int64_t bytes, const Repeats& repeats, at::Device device);

/// Forward and backward of a linear layer so small that only its fixed costs show, in seconds.
double measure_operation(const Repeats& repeats, at::Device device);

}  // namespace ingot::bench
