// A short causal convolution of each channel, and SiLU.
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// out = silu(sum), sum[t] = sum over ages below `width` of weight[width - 1 - age] * x[t - age], each channel on its own. Rows are tokens,
/// batch-major; a token does not see beyond the start of its document, nor beyond the tail of its row.
struct ShortConvolutionProblem {
  static constexpr int64_t kMostTaps = 8;
  int64_t rows, seq, channels, width;
  bool is_bf16;          // of x, tail, out and their gradients
  const bool* is_start;  // [rows] or null
  const void *x, *tail;  // [rows, channels]; [rows / seq, width - 1, channels] or null: zeros
  const float* weight;   // [width, channels], the oldest token's first
  void* out;
  const void* grad;
  void* grad_x;
  // Of a GPU's kernel: fp32 [runs][width, channels], of the weight.
  float* sums;
  int64_t runs;
};

INGOT_ROW_KERNEL(short_convolution_forward, const ShortConvolutionProblem&, int64_t begin, int64_t end);
/// Sums over rows: the gradient of the weight, [width, channels].
INGOT_ROW_KERNEL(short_convolution_backward, const ShortConvolutionProblem&, int64_t begin, int64_t end, float* sums);

}  // namespace ingot::kernels::cpu
