// Shared by the rows_*.cpp sources: whole or partial vectors at the end of a row, and their declarations.
#pragma once

#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

namespace ingot::kernels::cpu::INGOT_ISA {

void join_norm_forward(const JoinNormProblem&, int64_t begin, int64_t end);
void join_norm_backward(const JoinNormProblem&, int64_t begin, int64_t end, float* sums);
void swiglu_forward(const SwigluProblem&, int64_t begin, int64_t end);
void swiglu_backward(const SwigluProblem&, int64_t begin, int64_t end);
void split_rotate_forward(const SplitRotateProblem&, int64_t begin, int64_t end);
void split_rotate_backward(const SplitRotateProblem&, int64_t begin, int64_t end);
void cross_entropy(const CrossEntropyProblem&, int64_t begin, int64_t end);
void cross_entropy_part(const CrossEntropyPartProblem&, int64_t begin, int64_t end);
void cca_taps(const CcaProblem&, int64_t begin, int64_t end);
void cca_heads(const CcaProblem&, int64_t begin, int64_t end);
void cca_heads_backward(const CcaProblem&, int64_t begin, int64_t end, float* sums);
void cca_taps_backward(const CcaProblem&, int64_t begin, int64_t end, float* sums);
void short_convolution_forward(const ShortConvolutionProblem&, int64_t begin, int64_t end);
void short_convolution_sums_backward(const ShortConvolutionProblem&, int64_t begin, int64_t end, float* sums);
void short_convolution_backward(const ShortConvolutionProblem&, int64_t begin, int64_t end);
void adamw(const AdamwProblem&, int64_t begin, int64_t end);
void momentum(const MomentumProblem&, int64_t begin, int64_t end);
void apply(const ApplyProblem&, int64_t begin, int64_t end);

// `left` elements remain in the row; lanes past them read 0 and are not written.
template <class T>
INGOT_INLINE Float load_some(const T* from, int64_t left) {
  return left >= kLanes ? load(from) : load_part(from, left);
}
template <class T>
INGOT_INLINE void store_some(T* to, Float x, int64_t left) {
  left >= kLanes ? store(to, x) : store_part(to, x, left);
}
// 1 in the first `count` lanes, 0 in the others.
INGOT_INLINE Float first_lanes(int64_t count) {
  Float mask;
  for (int i = 0; i < kLanes; ++i) mask[i] = i < count ? 1.0f : 0.0f;
  return mask;
}
INGOT_INLINE void add_to(float* sum, int64_t i, Float x, int64_t n) { store_some(sum + i, load_some(sum + i, n) + x, n); }
INGOT_INLINE Float sigmoid(Float x) { return broadcast(1.0f) / (exp(-x) + 1.0f); }

}  // namespace ingot::kernels::cpu::INGOT_ISA
