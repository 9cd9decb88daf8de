// Gated linear units.
#pragma once

#include "kernels/cpu/rows.h"
#include "kernels/gate.h"

namespace ingot::kernels::cpu {

/// out = act(gate) * up * row_weight, rows [gate | up] of 2 * width.
struct GluProblem {
  int64_t rows, width;
  bool is_bf16;
  Gate gate;
  const void* gate_up;
  const float* row_weight;  // or null
  void* out;                // forward
  const void* grad;         // backward
  void* grad_gate_up;
  float* grad_row_weight;
};

INGOT_ROW_KERNEL(glu_forward, const GluProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(glu_backward, const GluProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
