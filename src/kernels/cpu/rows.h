// Row-wise CPU kernels that are compiled once per instruction set (isa.h): the problems they take and the table of functions
// that each set provides. Includes no ATen. Every function works on rows [begin, end) on the calling thread; rows_parallel.h
// spreads them. T is float or bf16, told by `is_bf16`; everything else is float. Sizes count elements.
//
// Arithmetic limit: all of these are bound by memory; each reads its inputs once and writes its outputs once.
#pragma once

#include <cstdint>

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
};
/// Sums over rows that the backward pass of one chunk leaves: five vectors of `width`, in this order.
enum JoinNormSum { kGradWeight, kGradResidualScale, kGradResidualBias, kGradBranchScale, kGradBranchBias, kJoinNormSums };

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

/// packed [rows, (heads + 2 kv_heads) * head_dim] <-> q, k (rotated), v. Row r has the table row r % table_rows.
struct SplitRotateProblem {
  int64_t rows, heads, kv_heads, head_dim, half, table_rows;
  bool is_bf16;
  const float *cosine, *sine;  // [table_rows, half]
  void *packed, *q, *k, *v;    // forward reads packed; backward writes it from the gradients in q, k, v
};

/// logits are replaced by scale * (softmax - onehot) where `write`; losses [rows].
struct CrossEntropyProblem {
  int64_t rows, vocab, logits_stride;
  float* logits;
  const int64_t* targets;  // negative: ignored
  double scale;
  float* losses;
  bool write;
};

/// The first half of it where each rank has a part of the vocabulary. statistics [rows, 3]: largest logit, sum of
/// exp(logit - largest), logit of the target (0 when it is not in this part: targets below 0).
struct CrossEntropyPartProblem {
  int64_t rows, vocab, logits_stride;
  float* logits;
  const int64_t* targets;
  float* statistics;
  bool write;  // logits become exp(logit - largest)
};

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
  void* grad_packed;       // as packed; written in two stages
  int64_t latent() const { return (heads + kv_heads) * head_dim; }
  int64_t packed_width() const { return latent() + kv_heads * head_dim; }
};
/// Sums over rows: tap0, tap1, bias0, bias1 (latent each); then temperature (kv_heads).

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
  // Backward, in two stages: grad_sum of all rows and the weight's sums [width, channels]; then grad_x.
  const void* grad;
  float* grad_sum;  // [rows, channels]
  void* grad_x;
};

struct AdamwProblem {
  int64_t count;
  float *master, *first, *second;
  const float* grad;
  uint16_t* narrow;  // bf16 copy of the new value, or null
  double lr, beta1, beta2, eps, decay, gradient_scale, correction1, correction2;
};

/// momentum = mu * momentum + scale * grad; direction = nesterov ? scale * grad + mu * momentum : momentum.
struct MomentumProblem {
  int64_t count;
  float* momentum;
  const float* grad;
  float* direction;
  double mu, gradient_scale;
  bool nesterov;
};

/// master = master * keep - step * direction.
struct ApplyProblem {
  int64_t count;
  float* master;
  const float* direction;
  uint16_t* narrow;
  double keep, step;
};

struct RowKernels {
  void (*join_norm_forward)(const JoinNormProblem&, int64_t begin, int64_t end);
  void (*join_norm_backward)(const JoinNormProblem&, int64_t begin, int64_t end, float* sums);
  void (*swiglu_forward)(const SwigluProblem&, int64_t begin, int64_t end);
  void (*swiglu_backward)(const SwigluProblem&, int64_t begin, int64_t end);
  void (*split_rotate_forward)(const SplitRotateProblem&, int64_t begin, int64_t end);
  void (*split_rotate_backward)(const SplitRotateProblem&, int64_t begin, int64_t end);
  void (*cross_entropy)(const CrossEntropyProblem&, int64_t begin, int64_t end);
  void (*cross_entropy_part)(const CrossEntropyPartProblem&, int64_t begin, int64_t end);
  void (*cca_taps)(const CcaProblem&, int64_t begin, int64_t end);
  void (*cca_heads)(const CcaProblem&, int64_t begin, int64_t end);
  void (*cca_heads_backward)(const CcaProblem&, int64_t begin, int64_t end, float* sums);
  void (*cca_taps_backward)(const CcaProblem&, int64_t begin, int64_t end, float* sums);
  void (*short_convolution_forward)(const ShortConvolutionProblem&, int64_t begin, int64_t end);
  void (*short_convolution_sums_backward)(const ShortConvolutionProblem&, int64_t begin, int64_t end, float* sums);
  void (*short_convolution_backward)(const ShortConvolutionProblem&, int64_t begin, int64_t end);
  void (*adamw)(const AdamwProblem&, int64_t begin, int64_t end);
  void (*momentum)(const MomentumProblem&, int64_t begin, int64_t end);
  void (*apply)(const ApplyProblem&, int64_t begin, int64_t end);
};

namespace portable {
extern const RowKernels row_kernels;
}
namespace avx2 {
extern const RowKernels row_kernels;
}
namespace avx512 {
extern const RowKernels row_kernels;
}

}  // namespace ingot::kernels::cpu
