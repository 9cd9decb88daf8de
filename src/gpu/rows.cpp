// Kernels on the current stream of a device, by the names that kernels/row_kernel.h and kernels/gpu/linear_attention.cpp look for.
#include "gpu/rows.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace {

template <class Problem>
int launch(int (*kernel)(const Problem&, void*), const Problem* problem, int device) {
  const c10::Device on(c10::kCUDA, static_cast<c10::DeviceIndex>(device));  // AMD's too, under ROCm
  const c10::DeviceGuard guard(on);
  return kernel(*problem, c10::impl::VirtualGuardImpl(c10::kCUDA).getStream(on).native_handle());
}

}  // namespace

using namespace ingot::kernels;

#define INGOT_EXPORTED extern "C" __attribute__((visibility("default")))

INGOT_EXPORTED int ingot_glu_forward(const cpu::GluProblem* problem, int device) {
  return launch(gpu::launch_glu_forward, problem, device);
}
INGOT_EXPORTED int ingot_glu_backward(const cpu::GluProblem* problem, int device) {
  return launch(gpu::launch_glu_backward, problem, device);
}
INGOT_EXPORTED int ingot_join_norm_forward(const cpu::JoinNormProblem* problem, int device) {
  return launch(gpu::launch_join_norm_forward, problem, device);
}
INGOT_EXPORTED int ingot_join_norm_backward(const cpu::JoinNormProblem* problem, int device) {
  return launch(gpu::launch_join_norm_backward, problem, device);
}
INGOT_EXPORTED int ingot_cca_taps(const cpu::CcaProblem* problem, int device) { return launch(gpu::launch_cca_taps, problem, device); }
INGOT_EXPORTED int ingot_cca_heads(const cpu::CcaProblem* problem, int device) { return launch(gpu::launch_cca_heads, problem, device); }
INGOT_EXPORTED int ingot_cca_heads_backward(const cpu::CcaProblem* problem, int device) {
  return launch(gpu::launch_cca_heads_backward, problem, device);
}
INGOT_EXPORTED int ingot_cca_taps_backward(const cpu::CcaProblem* problem, int device) {
  return launch(gpu::launch_cca_taps_backward, problem, device);
}
INGOT_EXPORTED int ingot_cross_entropy(const cpu::CrossEntropyProblem* problem, int device) {
  return launch(gpu::launch_cross_entropy, problem, device);
}
INGOT_EXPORTED int ingot_cross_entropy_part(const cpu::CrossEntropyPartProblem* problem, int device) {
  return launch(gpu::launch_cross_entropy_part, problem, device);
}
INGOT_EXPORTED int ingot_split_rotate_forward(const cpu::SplitRotateProblem* problem, int device) {
  return launch(gpu::launch_split_rotate_forward, problem, device);
}
INGOT_EXPORTED int ingot_split_rotate_backward(const cpu::SplitRotateProblem* problem, int device) {
  return launch(gpu::launch_split_rotate_backward, problem, device);
}
INGOT_EXPORTED int ingot_qk_norm_forward(const cpu::QkNormProblem* problem, int device) {
  return launch(gpu::launch_qk_norm_forward, problem, device);
}
INGOT_EXPORTED int ingot_qk_norm_backward(const cpu::QkNormProblem* problem, int device) {
  return launch(gpu::launch_qk_norm_backward, problem, device);
}
INGOT_EXPORTED int ingot_short_convolution_forward(const cpu::ShortConvolutionProblem* problem, int device) {
  return launch(gpu::launch_short_convolution_forward, problem, device);
}
INGOT_EXPORTED int ingot_short_convolution_backward(const cpu::ShortConvolutionProblem* problem, int device) {
  return launch(gpu::launch_short_convolution_backward, problem, device);
}
INGOT_EXPORTED int ingot_round_to_fp8(const cpu::Fp8Problem* problem, int device) {
  return launch(gpu::launch_round_to_fp8, problem, device);
}
INGOT_EXPORTED int ingot_fp8_codes(const cpu::Fp8CodesProblem* problem, int device) {
  return launch(gpu::launch_fp8_codes, problem, device);
}
INGOT_EXPORTED int ingot_fp8_groups(const cpu::Fp8GroupsProblem* problem, int device) {
  return launch(gpu::launch_fp8_groups, problem, device);
}
INGOT_EXPORTED int ingot_has_fp8_gemms(int device) { return gpu::has_fp8_gemms(device); }
INGOT_EXPORTED int ingot_has_grouped_fp8_gemms(int device) { return gpu::has_grouped_fp8_gemms(device); }
INGOT_EXPORTED int ingot_largest_magnitude(const cpu::LargestProblem* problem, int device) {
  return launch(gpu::launch_largest_magnitude, problem, device);
}
INGOT_EXPORTED int ingot_linear_attention_forward(const gpu::LinearAttentionProblem* problem, int device) {
  return launch(gpu::launch_linear_attention_forward, problem, device);
}
INGOT_EXPORTED int ingot_linear_attention_backward(const gpu::LinearAttentionProblem* problem, int device) {
  return launch(gpu::launch_linear_attention_backward, problem, device);
}
INGOT_EXPORTED int ingot_sort_slots(const cpu::SortSlotsProblem* problem, int device) {
  return launch(gpu::launch_sort_slots, problem, device);
}
INGOT_EXPORTED int ingot_gather_rows(const cpu::GatherRowsProblem* problem, int device) {
  return launch(gpu::launch_gather_rows, problem, device);
}
INGOT_EXPORTED int ingot_sum_slots(const cpu::SumSlotsProblem* problem, int device) {
  return launch(gpu::launch_sum_slots, problem, device);
}
INGOT_EXPORTED int ingot_topk_softmax(const cpu::TopkSoftmaxProblem* problem, int device) {
  return launch(gpu::launch_topk_softmax, problem, device);
}
INGOT_EXPORTED int ingot_topk_softmax_backward(const cpu::TopkSoftmaxProblem* problem, int device) {
  return launch(gpu::launch_topk_softmax_backward, problem, device);
}
INGOT_EXPORTED int ingot_adamw(const cpu::AdamwProblem* problem, int device) { return launch(gpu::launch_adamw, problem, device); }
INGOT_EXPORTED int ingot_momentum(const cpu::MomentumProblem* problem, int device) { return launch(gpu::launch_momentum, problem, device); }
INGOT_EXPORTED int ingot_apply_direction(const cpu::ApplyProblem* problem, int device) {
  return launch(gpu::launch_apply_direction, problem, device);
}
INGOT_EXPORTED int ingot_round_terms(const cpu::RoundProblem* problem, int device) {
  return launch(gpu::launch_round_terms, problem, device);
}
INGOT_EXPORTED int ingot_square_sum(const cpu::SquareSumProblem* problem, int device) {
  return launch(gpu::launch_square_sum, problem, device);
}
INGOT_EXPORTED int ingot_add_chunks(const cpu::ChunkSumProblem* problem, int device) {
  return launch(gpu::launch_add_chunks, problem, device);
}
INGOT_EXPORTED int ingot_digest(const cpu::DigestProblem* problem, int device) { return launch(gpu::launch_digest, problem, device); }
INGOT_EXPORTED int ingot_fill_normal(const gpu::InitialiseProblem* problem, int device) {
  return launch(gpu::launch_fill_normal, problem, device);
}
INGOT_EXPORTED int ingot_symmetric_matmul(const gpu::SymmetricMatmulProblem* problem, int device) {
  return launch(gpu::launch_symmetric_matmul, problem, device);
}
INGOT_EXPORTED int ingot_prefers_symmetric_matmul(int device) { return gpu::prefers_symmetric_matmul(device); }
