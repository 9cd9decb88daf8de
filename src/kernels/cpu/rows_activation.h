// SwiGLU.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// out = silu(gate) * up * row_weight, rows [gate | up] of 2 * width.
struct SwigluProblem {
  int64_t rows, width;
  bool is_bf16;
  const void* gate_up;
  const float* row_weight;  // or null
  void* out;                // forward
  const void* grad;         // backward
  void* grad_gate_up;
  float* grad_row_weight;
};

INGOT_ROW_KERNEL(swiglu_forward, const SwigluProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(swiglu_backward, const SwigluProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
