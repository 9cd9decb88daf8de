// Compiled once for each INGOT_WAVE.
#include "kernels/gpu/host_kernels.h"

#include "kernels/gpu/cca.h"
#include "kernels/gpu/cross_entropy.h"
#include "kernels/gpu/digest.h"
#include "kernels/gpu/exact_sum.h"
#include "kernels/gpu/fp8.h"
#include "kernels/gpu/glu.h"
#include "kernels/gpu/initialise.h"
#include "kernels/gpu/join_norm.h"
#include "kernels/gpu/linear_attention_launch.h"
#include "kernels/gpu/matrix.h"
#include "kernels/gpu/qk_norm.h"
#include "kernels/gpu/routing.h"
#include "kernels/gpu/short_convolution.h"
#include "kernels/gpu/split_rotate.h"
#include "kernels/gpu/symmetric_matmul.h"
#include "kernels/gpu/topk_softmax.h"
#include "kernels/gpu/update.h"

namespace ingot::kernels::gpu {
namespace {

struct HostLauncher {
  uint64_t seed;
  template <class Kernel, class Problem>
  int run(int64_t blocks, int threads, const Problem& problem) const {
    host::run(
        blocks, threads, seed, [&] { Kernel::run(problem); }, host::name_of(typeid(Kernel)));
    return 0;  // no error
  }
};

struct Matrices {
  static void run(const MatrixCase& c) {
    INGOT_SHARED(Bf16, left, kMatrix * kStep);
    INGOT_SHARED(Bf16, right, kMatrix * kStep);
    for (int i = thread_index(); i < kMatrix * kMatrix; i += block_threads()) {
      left[i / kMatrix * kStep + i % kMatrix] = {c.left[i]};
      right[i / kMatrix * kStep + i % kMatrix] = {c.right[i]};
    }
    barrier();
    if (!c.comes_whole && thread_index() == 0) return;
    const auto a = c.left_is_by_row ? load_left<Order::by_row>(left, kStep) : load_left<Order::by_column>(left, kStep);
    const auto b = c.right_is_by_row ? load_right<Order::by_row>(right, kStep) : load_right<Order::by_column>(right, kStep);
    MatrixSum sums;
    for (int i = 0; i < kMatrixOfThread; ++i) sums.at[i] = c.sums[MatrixSum::row(i) * kMatrix + MatrixSum::column(i)];
    multiply(sums, a, b);
    for (int i = 0; i < kMatrixOfThread; ++i) {
      c.sums_of_threads[thread_index() * kMatrixOfThread + i] = sums.at[i];
      c.sums[MatrixSum::row(i) * kMatrix + MatrixSum::column(i)] = sums.at[i];
    }
    for (int i = 0; i < kMatrixOfThread / 2; ++i) {
      c.left_pairs[thread_index() * kMatrixOfThread / 2 + i] = a.pairs[i];
      c.right_pairs[thread_index() * kMatrixOfThread / 2 + i] = b.pairs[i];
    }
  }
  static constexpr int kStep = kMatrix + 8;
};

constexpr HostKernels kKernels{
    .glu_forward = [](const cpu::GluProblem& p, uint64_t seed) { glu_forward(p, HostLauncher{seed}); },
    .glu_backward = [](const cpu::GluProblem& p, uint64_t seed) { glu_backward(p, HostLauncher{seed}); },
    .cross_entropy = [](const cpu::CrossEntropyProblem& p, uint64_t seed) { cross_entropy(p, HostLauncher{seed}); },
    .cross_entropy_part = [](const cpu::CrossEntropyPartProblem& p, uint64_t seed) { cross_entropy_part(p, HostLauncher{seed}); },
    .split_rotate_forward = [](const cpu::SplitRotateProblem& p, uint64_t seed) { split_rotate_forward(p, HostLauncher{seed}); },
    .split_rotate_backward = [](const cpu::SplitRotateProblem& p, uint64_t seed) { split_rotate_backward(p, HostLauncher{seed}); },
    .join_norm_forward = [](const cpu::JoinNormProblem& p, uint64_t seed) { join_norm_forward(p, HostLauncher{seed}); },
    .join_norm_backward = [](const cpu::JoinNormProblem& p, uint64_t seed) { join_norm_backward(p, HostLauncher{seed}); },
    .cca_taps = [](const cpu::CcaProblem& p, uint64_t seed) { cca_taps(p, HostLauncher{seed}); },
    .cca_heads = [](const cpu::CcaProblem& p, uint64_t seed) { cca_heads(p, HostLauncher{seed}); },
    .cca_heads_backward = [](const cpu::CcaProblem& p, uint64_t seed) { cca_heads_backward(p, HostLauncher{seed}); },
    .cca_taps_backward = [](const cpu::CcaProblem& p, uint64_t seed) { cca_taps_backward(p, HostLauncher{seed}); },
    .qk_norm_forward = [](const cpu::QkNormProblem& p, uint64_t seed) { qk_norm_forward(p, HostLauncher{seed}); },
    .qk_norm_backward = [](const cpu::QkNormProblem& p, uint64_t seed) { qk_norm_backward(p, HostLauncher{seed}); },
    .short_convolution_forward = [](const cpu::ShortConvolutionProblem& p,
                                    uint64_t seed) { short_convolution_forward(p, HostLauncher{seed}); },
    .short_convolution_backward = [](const cpu::ShortConvolutionProblem& p,
                                     uint64_t seed) { short_convolution_backward(p, HostLauncher{seed}); },
    .round_to_fp8 = [](const cpu::Fp8Problem& p, uint64_t seed) { round_to_fp8(p, HostLauncher{seed}); },
    .fp8_codes = [](const cpu::Fp8CodesProblem& p, uint64_t seed) { fp8_codes(p, HostLauncher{seed}); },
    .fp8_groups = [](const cpu::Fp8GroupsProblem& p, uint64_t seed) { fp8_groups(p, HostLauncher{seed}); },
    .largest_magnitude = [](const cpu::LargestProblem& p, uint64_t seed) { largest_magnitude(p, HostLauncher{seed}); },
    .sort_slots = [](const cpu::SortSlotsProblem& p, uint64_t seed) { sort_slots(p, HostLauncher{seed}); },
    .gather_rows = [](const cpu::GatherRowsProblem& p, uint64_t seed) { gather_rows(p, HostLauncher{seed}); },
    .sum_slots = [](const cpu::SumSlotsProblem& p, uint64_t seed) { sum_slots(p, HostLauncher{seed}); },
    .topk_softmax = [](const cpu::TopkSoftmaxProblem& p, uint64_t seed) { topk_softmax(p, HostLauncher{seed}); },
    .topk_softmax_backward = [](const cpu::TopkSoftmaxProblem& p, uint64_t seed) { topk_softmax_backward(p, HostLauncher{seed}); },
    .adamw = [](const cpu::AdamwProblem& p, uint64_t seed) { adamw(p, HostLauncher{seed}); },
    .momentum = [](const cpu::MomentumProblem& p, uint64_t seed) { momentum(p, HostLauncher{seed}); },
    .apply_direction = [](const cpu::ApplyProblem& p, uint64_t seed) { apply_direction(p, HostLauncher{seed}); },
    .round_terms = [](const cpu::RoundProblem& p, uint64_t seed) { round_terms(p, HostLauncher{seed}); },
    .square_sum = [](const cpu::SquareSumProblem& p, uint64_t seed) { square_sum(p, HostLauncher{seed}); },
    .add_chunks = [](const cpu::ChunkSumProblem& p, uint64_t seed) { add_chunks(p, HostLauncher{seed}); },
    .fill_normal = [](const InitialiseProblem& p, uint64_t seed) { fill_normal(p, HostLauncher{seed}); },
    .digest = [](const cpu::DigestProblem& p, uint64_t seed) { digest(p, HostLauncher{seed}); },
    .linear_attention_forward = [](const LinearAttentionProblem& p, uint64_t seed) { linear_attention_forward(p, HostLauncher{seed}); },
    .linear_attention_backward = [](const LinearAttentionProblem& p, uint64_t seed) { linear_attention_backward(p, HostLauncher{seed}); },
    .symmetric_matmul = [](const SymmetricMatmulProblem& p, uint64_t seed) { symmetric_matmul(p, HostLauncher{seed}); },
    .matrices = [](const MatrixCase& c, uint64_t seed) { HostLauncher{seed}.run<Matrices>(1, kWave, c); }};

}  // namespace

#if INGOT_WAVE == 64
const HostKernels host_kernels_wave64 = kKernels;
#else
const HostKernels host_kernels_wave32 = kKernels;
#endif

}  // namespace ingot::kernels::gpu
