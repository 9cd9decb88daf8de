// The kernels of this folder as the host runs them, for tests: once with waves of 32 threads, once with 64. `seed`: see host_block.h.
#pragma once

#include "kernels/cpu/rows_activation.h"
#include "kernels/cpu/rows_cca.h"
#include "kernels/cpu/rows_cross_entropy.h"
#include "kernels/cpu/rows_digest.h"
#include "kernels/cpu/rows_exact_sum.h"
#include "kernels/cpu/rows_fp8.h"
#include "kernels/cpu/rows_norm.h"
#include "kernels/cpu/rows_qk_norm.h"
#include "kernels/cpu/rows_rope.h"
#include "kernels/cpu/rows_routing.h"
#include "kernels/cpu/rows_short_convolution.h"
#include "kernels/cpu/rows_topk_softmax.h"
#include "kernels/cpu/rows_update.h"
#include "kernels/gpu/initialise_problem.h"
#include "kernels/gpu/linear_attention_problem.h"
#include "kernels/gpu/symmetric_matmul_problem.h"

namespace ingot::kernels::gpu {

/// What one wave does with matrix.h, thread by thread.
struct MatrixCase {
  const uint16_t *left, *right;  // bf16 [16, 16], rows or columns behind each other
  bool left_is_by_row, right_is_by_row;
  bool comes_whole = true;             // else thread 0 stays away
  uint32_t *left_pairs, *right_pairs;  // [threads, registers]: what each thread holds
  float *sums_of_threads, *sums;       // [threads, elements] and [16, 16] by row, to which the product is added
};

struct HostKernels {
  void (*glu_forward)(const cpu::GluProblem&, uint64_t seed);
  void (*glu_backward)(const cpu::GluProblem&, uint64_t seed);
  void (*cross_entropy)(const cpu::CrossEntropyProblem&, uint64_t seed);
  void (*cross_entropy_part)(const cpu::CrossEntropyPartProblem&, uint64_t seed);
  void (*split_rotate_forward)(const cpu::SplitRotateProblem&, uint64_t seed);
  void (*split_rotate_backward)(const cpu::SplitRotateProblem&, uint64_t seed);
  void (*join_norm_forward)(const cpu::JoinNormProblem&, uint64_t seed);
  void (*join_norm_backward)(const cpu::JoinNormProblem&, uint64_t seed);
  void (*cca_taps)(const cpu::CcaProblem&, uint64_t seed);
  void (*cca_heads)(const cpu::CcaProblem&, uint64_t seed);
  void (*cca_heads_backward)(const cpu::CcaProblem&, uint64_t seed);
  void (*cca_taps_backward)(const cpu::CcaProblem&, uint64_t seed);
  void (*qk_norm_forward)(const cpu::QkNormProblem&, uint64_t seed);
  void (*qk_norm_backward)(const cpu::QkNormProblem&, uint64_t seed);
  void (*short_convolution_forward)(const cpu::ShortConvolutionProblem&, uint64_t seed);
  void (*short_convolution_backward)(const cpu::ShortConvolutionProblem&, uint64_t seed);
  void (*round_to_fp8)(const cpu::Fp8Problem&, uint64_t seed);
  void (*fp8_codes)(const cpu::Fp8CodesProblem&, uint64_t seed);
  void (*fp8_groups)(const cpu::Fp8GroupsProblem&, uint64_t seed);
  void (*largest_magnitude)(const cpu::LargestProblem&, uint64_t seed);
  void (*sort_slots)(const cpu::SortSlotsProblem&, uint64_t seed);
  void (*gather_rows)(const cpu::GatherRowsProblem&, uint64_t seed);
  void (*sum_slots)(const cpu::SumSlotsProblem&, uint64_t seed);
  void (*topk_softmax)(const cpu::TopkSoftmaxProblem&, uint64_t seed);
  void (*topk_softmax_backward)(const cpu::TopkSoftmaxProblem&, uint64_t seed);
  void (*adamw)(const cpu::AdamwProblem&, uint64_t seed);
  void (*momentum)(const cpu::MomentumProblem&, uint64_t seed);
  void (*apply_direction)(const cpu::ApplyProblem&, uint64_t seed);
  void (*round_terms)(const cpu::RoundProblem&, uint64_t seed);
  void (*square_sum)(const cpu::SquareSumProblem&, uint64_t seed);
  void (*add_chunks)(const cpu::ChunkSumProblem&, uint64_t seed);
  void (*fill_normal)(const InitialiseProblem&, uint64_t seed);
  void (*digest)(const cpu::DigestProblem&, uint64_t seed);
  void (*linear_attention_forward)(const LinearAttentionProblem&, uint64_t seed);
  void (*linear_attention_backward)(const LinearAttentionProblem&, uint64_t seed);
  void (*symmetric_matmul)(const SymmetricMatmulProblem&, uint64_t seed);
  void (*matrices)(const MatrixCase&, uint64_t seed);
};
extern const HostKernels host_kernels_wave32, host_kernels_wave64;

}  // namespace ingot::kernels::gpu
