// Splitting a packed projection into heads and rotating q and k, and the way back.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// packed [rows, (heads + 2 kv_heads) * head_dim] <-> q, k (rotated), v. Row r has the table row r % table_rows.
struct SplitRotateProblem {
  int64_t rows, heads, kv_heads, head_dim, half, table_rows;
  bool is_bf16;
  const float *cosine, *sine;  // [table_rows, half]
  void *packed, *q, *k, *v;    // forward reads packed; backward writes it from the gradients in q, k, v
};

INGOT_ROW_KERNEL(split_rotate_forward, const SplitRotateProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(split_rotate_backward, const SplitRotateProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
