// CCA's token mixing around its matmuls.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// The parts of cca_mix around the grouped convolution's products. Rows are tokens, batch-major; a row is a start when
/// row % seq == 0 or is_start[row].
struct CcaProblem {
  int64_t rows, seq, heads, kv_heads, head_dim, half, table_rows;
  int64_t current;  // value channels of the token itself; the other kv_heads * head_dim - current come from the one before
  bool is_bf16;
  const bool* is_start;              // [rows] or null
  const void* packed;                // [rows, latent + kv_heads * head_dim]
  const float *tap0, *tap1, *bias0;  // depthwise, [latent] each
  const float* bias1;                // grouped, [latent]
  const float* temperature;          // [kv_heads]
  const float *cosine, *sine;        // [table_rows, half]
  float* taps;                       // [rows, heads + kv_heads, 2, head_dim]: the first convolution at the previous and at this token
  float* mixed;                      // [rows, latent]: the second one, without its bias
  void *q, *k, *v;                   // forward: outputs; backward: their gradients
  // Backward:
  float* grad_mixed;       // [rows, latent], also what the products read
  const float* grad_taps;  // as taps
  void* grad_packed;       // as packed; written in two stages, or by a GPU in the second one alone
  // Of a GPU's kernels: fp32 [runs][sums below].
  float* sums;
  int64_t runs;
  int64_t latent() const { return (heads + kv_heads) * head_dim; }
  int64_t packed_width() const { return latent() + kv_heads * head_dim; }
};
/// Sums over rows. Of the heads: bias1 (latent), temperature (kv_heads). Of the taps: tap0, tap1, bias0 (latent each).

INGOT_ROW_KERNEL(cca_taps, const CcaProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(cca_heads, const CcaProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(cca_heads_backward, const CcaProblem&, int64_t begin, int64_t end, float* sums);
INGOT_ROW_KERNEL(cca_taps_backward, const CcaProblem&, int64_t begin, int64_t end, float* sums);

}  // namespace ingot::kernels::cpu
