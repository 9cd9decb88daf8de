// What rows.cu has: each starts a kernel on a stream of CUDA's and gives an error of CUDA's, or 0.
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

int launch_glu_forward(const cpu::GluProblem& problem, void* stream);
int launch_glu_backward(const cpu::GluProblem& problem, void* stream);
int launch_cca_taps(const cpu::CcaProblem& problem, void* stream);
int launch_cca_heads(const cpu::CcaProblem& problem, void* stream);
int launch_cca_heads_backward(const cpu::CcaProblem& problem, void* stream);
int launch_cca_taps_backward(const cpu::CcaProblem& problem, void* stream);
int launch_cross_entropy(const cpu::CrossEntropyProblem& problem, void* stream);
int launch_cross_entropy_part(const cpu::CrossEntropyPartProblem& problem, void* stream);
int launch_split_rotate_forward(const cpu::SplitRotateProblem& problem, void* stream);
int launch_split_rotate_backward(const cpu::SplitRotateProblem& problem, void* stream);
int launch_join_norm_forward(const cpu::JoinNormProblem& problem, void* stream);
int launch_join_norm_backward(const cpu::JoinNormProblem& problem, void* stream);
int launch_qk_norm_forward(const cpu::QkNormProblem& problem, void* stream);
int launch_qk_norm_backward(const cpu::QkNormProblem& problem, void* stream);
int launch_short_convolution_forward(const cpu::ShortConvolutionProblem& problem, void* stream);
int launch_short_convolution_backward(const cpu::ShortConvolutionProblem& problem, void* stream);
int launch_round_to_fp8(const cpu::Fp8Problem& problem, void* stream);
int launch_fp8_codes(const cpu::Fp8CodesProblem& problem, void* stream);
int launch_fp8_groups(const cpu::Fp8GroupsProblem& problem, void* stream);
/// 1 or 0.
int has_fp8_gemms(int device);
int has_grouped_fp8_gemms(int device);
int launch_largest_magnitude(const cpu::LargestProblem& problem, void* stream);
int launch_linear_attention_forward(const LinearAttentionProblem& problem, void* stream);
int launch_linear_attention_backward(const LinearAttentionProblem& problem, void* stream);
int launch_sort_slots(const cpu::SortSlotsProblem& problem, void* stream);
int launch_gather_rows(const cpu::GatherRowsProblem& problem, void* stream);
int launch_sum_slots(const cpu::SumSlotsProblem& problem, void* stream);
int launch_topk_softmax(const cpu::TopkSoftmaxProblem& problem, void* stream);
int launch_topk_softmax_backward(const cpu::TopkSoftmaxProblem& problem, void* stream);
int launch_adamw(const cpu::AdamwProblem& problem, void* stream);
int launch_momentum(const cpu::MomentumProblem& problem, void* stream);
int launch_apply_direction(const cpu::ApplyProblem& problem, void* stream);
int launch_fill_normal(const InitialiseProblem& problem, void* stream);
int launch_symmetric_matmul(const SymmetricMatmulProblem& problem, void* stream);
/// 1 or 0: whether that is to be expected to be faster than the library's GEMM.
int prefers_symmetric_matmul(int device);
int launch_round_terms(const cpu::RoundProblem& problem, void* stream);
int launch_square_sum(const cpu::SquareSumProblem& problem, void* stream);
int launch_add_chunks(const cpu::ChunkSumProblem& problem, void* stream);
int launch_digest(const cpu::DigestProblem& problem, void* stream);

}  // namespace ingot::kernels::gpu
