// RMSNorm and RoPE of the queries and keys in a packed projection.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// packed [rows, (heads + 2 kv_heads) * head_dim] -> q, k: each run of channels normed, rounded to the dtype, then each head rotated. Row r
/// has the table row r % table_rows. Backward: the gradients in q, k and v -> grad_packed.
struct QkNormProblem {
  struct Part {
    int64_t heads, run;  // run: channels that are normed together, whole heads
    const float* weight;
    void* split;  // [rows, heads, head_dim]
    int64_t runs(int64_t head_dim) const { return heads * head_dim / run; }
  };
  int64_t rows, head_dim, half, table_rows, kv_heads;
  bool is_bf16;
  double eps;
  const float *cosine, *sine;  // [table_rows, half]
  const void* packed;
  Part q, k;
  float* inverse;  // [rows, q's runs + k's runs], 1 / rms
  const void* grad_v;
  void* grad_packed;
  // Of a GPU's kernels, which take runs of one head of at most kMostHeadDimOfQkNorm channels: fp32 [runs][q's weight, k's weight].
  float* sums;
  int64_t runs;
};
constexpr int64_t kMostHeadDimOfQkNorm = 256;

INGOT_ROW_KERNEL(qk_norm_forward, const QkNormProblem&, int64_t begin, int64_t end);
/// Sums over rows: gradients of q's weight, then of k's.
INGOT_ROW_KERNEL(qk_norm_backward, const QkNormProblem&, int64_t begin, int64_t end, float* sums);

}  // namespace ingot::kernels::cpu
