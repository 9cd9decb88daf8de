// What the schedules of sharded_attention.h share: which of a row's tokens lie where, and what a run of queries sees of a run
// of keys.
#pragma once

#include <ATen/ATen.h>

#include "kernels/attention.h"
#include "layers/autograd.h"
#include "layers/sequence_axis.h"

namespace ingot::layers {

/// A copy goes with each graph: backward may run when the batch's Sequences are gone.
struct AttentionSpread {
  SequenceAxis axis;
  at::Tensor document_start;      // int32 [batch, tokens of a row]; undefined: every row is one document
  int64_t batch = 0, length = 0;  // rows; tokens of a chunk
  int64_t window = 0;             // 0 = unlimited
  double scale = 1;
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

// q [batch, chunks, length, heads, head_dim], k, v alike -> [batch, chunks * length, heads, head_dim].
at::Tensor ring_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionSpread& spread);
at::Tensor allgather_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionSpread& spread);
at::Tensor ulysses_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionSpread& spread);

/// How many groups of kv heads are gathered one after the other.
int64_t allgather_groups(int64_t kv_heads);

/// The type of accumulators for tensors like x.
inline at::TensorOptions wide_options(const at::Tensor& x) {
  return x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

}  // namespace ingot::layers
