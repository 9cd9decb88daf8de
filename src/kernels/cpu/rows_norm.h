// Residual joins and RMSNorm.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// joined = (residual + residual_bias) * residual_scale + (branch + branch_bias) * branch_scale;  normed = rms_norm(joined) * weight.
/// Without a branch joined is the residual; without scales they are 1 and 0; without a weight nothing is normed.
struct JoinNormProblem {
  int64_t rows, width;
  bool is_bf16;  // of branch, normed and their gradients
  double eps;
  const float *residual, *residual_scale, *residual_bias, *branch_scale, *branch_bias, *weight;
  const void* branch;
  float* joined;  // null when there is no branch
  void* normed;
  float* inverse;  // [rows], 1 / rms

  // Backward. grad_joined may be null (nothing but the norm used it), grad_normed likewise.
  const float* grad_joined;
  const void* grad_normed;
  float* grad_residual;
  void* grad_branch;
  // Of a GPU's kernels, which take takes_width() alone: fp32 [runs][kJoinNormSums][width], the sums of each run of rows, or null. A CPU's
  // caller has them.
  float* sums;
  int64_t runs;
};

/// Whether a GPU's block holds a row, and with scales the five sums of its columns, in registers.
inline bool takes_width(int64_t width, bool is_scaled) { return width <= (width % 4 == 0 ? 4 : 1) * 512 * (is_scaled ? 2 : 8); }

/// Sums over rows that the backward pass of one chunk leaves where there were zeros: five vectors of `width`, in this order.
enum JoinNormSum { kGradWeight, kGradResidualScale, kGradResidualBias, kGradBranchScale, kGradBranchBias, kJoinNormSums };

INGOT_ROW_KERNEL(join_norm_forward, const JoinNormProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(join_norm_backward, const JoinNormProblem&, int64_t begin, int64_t end, float* sums);

}  // namespace ingot::kernels::cpu
