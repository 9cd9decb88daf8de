// What the methods of attention_method.h share: which of a row's tokens lie where, and what a run of queries sees of a run
// of keys.
#pragma once

#include "device/aten.h"
#include "kernels/attention.h"
#include "layers/autograd.h"
#include "parallel/context/axis.h"

namespace ingot::parallel {

/// A copy goes with each graph: backward may run when the batch's Sequences are gone.
struct AttentionSpread {
  /// `x`: a tensor [batch, …] of the rank; `chunk_length`: tokens of each of its chunks.
  AttentionSpread(const ContextAxis& over, const layers::Sequences& sequences, const at::Tensor& x, int64_t chunk_length,
                  const kernels::ScoreRule& score_rule, int64_t seen);

  ContextAxis axis;
  at::Tensor document_start;      // int32 [batch, tokens of a row]; undefined: every row is one document
  int64_t batch = 0, length = 0;  // rows; tokens of a chunk
  int64_t window = 0;             // 0 = unlimited
  kernels::ScoreRule rule;
  at::Device device = at::kCPU;

  int64_t row() const { return length * axis.all_chunks(); }
  int64_t begin(int chunk) const { return chunk * length; }
  /// Whether a query of this chunk can see one of `keys` keys from position `first_key` on.
  bool sees(int chunk, int64_t first_key, int64_t keys) const {
    return first_key < begin(chunk) + length && (window == 0 || first_key + keys + window > begin(chunk) + 1);
  }
  /// For `queries` queries from position `first_query` on.
  kernels::AttentionMask mask(int64_t first_query, int64_t queries, int64_t first_key, int64_t keys) const;
};

/// How many groups of kv heads the all-gather method gathers one after the other.
int64_t allgather_groups(int64_t kv_heads);

/// layers::see_sinks and layers::gradient_of_sinks of a rank's chunks: x [batch, chunks, length, heads, head_dim], log_sum_exp [chunks,
/// batch, heads, length]. Nothing without sinks.
void see_sinks(const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& sinks);
at::Tensor gradient_of_sinks(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& sinks);

/// The type of accumulators for tensors like x.
inline at::TensorOptions wide_options(const at::Tensor& x) {
  return x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace ingot::parallel
