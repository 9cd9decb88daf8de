// The kernels of kernels/gpu/ for the vendor's compiler: plain functions with plain addresses, no header of torch.
#include "gpu/rows.h"
#include "kernels/gpu/cca.h"
#include "kernels/gpu/cross_entropy.h"
#include "kernels/gpu/digest.h"
#include "kernels/gpu/exact_sum.h"
#include "kernels/gpu/fp8.h"
#include "kernels/gpu/initialise.h"
#include "kernels/gpu/join_norm.h"
#include "kernels/gpu/linear_attention_launch.h"
#include "kernels/gpu/qk_norm.h"
#include "kernels/gpu/routing.h"
#include "kernels/gpu/short_convolution.h"
#include "kernels/gpu/split_rotate.h"
#include "kernels/gpu/glu.h"
#include "kernels/gpu/symmetric_matmul.h"
#include "kernels/gpu/topk_softmax.h"
#include "kernels/gpu/update.h"

namespace ingot::kernels::gpu {
namespace {

// Of a block: what a kernel says, else 512.
template <class Kernel>
constexpr int most_threads() {
  if constexpr (requires { Kernel::kThreads; }) return Kernel::kThreads;
  else return 512;
}

template <class Kernel, class Problem>
__global__ void __launch_bounds__(most_threads<Kernel>()) entry(const Problem problem) {
  Kernel::run(problem);
}

// Of a kernel that asks for a quarter of the threads to fit: CUDA is told blocks of a multiprocessor, HIP waves of a SIMD.
template <class Kernel, class Problem>
__global__ void __launch_bounds__(most_threads<Kernel>(), kWave == 64 ? 2 : 512 / most_threads<Kernel>())
    entry_of_large(const Problem problem) {
  Kernel::run(problem);
}

struct Launcher {
  Stream stream;
  template <class Kernel, class Problem>
  int run(int64_t blocks, int threads, const Problem& problem) const {
    if (blocks == 0) return 0;
    const dim3 grid(static_cast<unsigned>(blocks));
    if constexpr (requires { Kernel::kFitsAQuarter; }) entry_of_large<Kernel><<<grid, threads, 0, stream>>>(problem);
    else entry<Kernel><<<grid, threads, 0, stream>>>(problem);
    return last_error();
  }
};

Launcher on(void* stream) { return {static_cast<Stream>(stream)}; }

}  // namespace

int launch_glu_forward(const cpu::GluProblem& p, void* stream) { return glu_forward(p, on(stream)); }
int launch_glu_backward(const cpu::GluProblem& p, void* stream) { return glu_backward(p, on(stream)); }
int launch_cca_taps(const cpu::CcaProblem& p, void* stream) { return cca_taps(p, on(stream)); }
int launch_cca_heads(const cpu::CcaProblem& p, void* stream) { return cca_heads(p, on(stream)); }
int launch_cca_heads_backward(const cpu::CcaProblem& p, void* stream) { return cca_heads_backward(p, on(stream)); }
int launch_cca_taps_backward(const cpu::CcaProblem& p, void* stream) { return cca_taps_backward(p, on(stream)); }
int launch_cross_entropy(const cpu::CrossEntropyProblem& p, void* stream) { return cross_entropy(p, on(stream)); }
int launch_cross_entropy_part(const cpu::CrossEntropyPartProblem& p, void* stream) { return cross_entropy_part(p, on(stream)); }
int launch_split_rotate_forward(const cpu::SplitRotateProblem& p, void* stream) { return split_rotate_forward(p, on(stream)); }
int launch_split_rotate_backward(const cpu::SplitRotateProblem& p, void* stream) { return split_rotate_backward(p, on(stream)); }
int launch_join_norm_forward(const cpu::JoinNormProblem& p, void* stream) { return join_norm_forward(p, on(stream)); }
int launch_join_norm_backward(const cpu::JoinNormProblem& p, void* stream) { return join_norm_backward(p, on(stream)); }
int launch_qk_norm_forward(const cpu::QkNormProblem& p, void* stream) { return qk_norm_forward(p, on(stream)); }
int launch_qk_norm_backward(const cpu::QkNormProblem& p, void* stream) { return qk_norm_backward(p, on(stream)); }
int launch_short_convolution_forward(const cpu::ShortConvolutionProblem& p, void* stream) {
  return short_convolution_forward(p, on(stream));
}
int launch_short_convolution_backward(const cpu::ShortConvolutionProblem& p, void* stream) {
  return short_convolution_backward(p, on(stream));
}
int launch_round_to_fp8(const cpu::Fp8Problem& p, void* stream) { return round_to_fp8(p, on(stream)); }
int launch_fp8_codes(const cpu::Fp8CodesProblem& p, void* stream) { return fp8_codes(p, on(stream)); }
int launch_fp8_groups(const cpu::Fp8GroupsProblem& p, void* stream) { return fp8_groups(p, on(stream)); }
int has_fp8_gemms(int device) { return multiplies_fp8(device) ? 1 : 0; }
int has_grouped_fp8_gemms(int device) { return multiplies_groups_of_fp8(device) ? 1 : 0; }
int launch_largest_magnitude(const cpu::LargestProblem& p, void* stream) { return largest_magnitude(p, on(stream)); }
int launch_linear_attention_forward(const LinearAttentionProblem& p, void* stream) { return linear_attention_forward(p, on(stream)); }
int launch_linear_attention_backward(const LinearAttentionProblem& p, void* stream) { return linear_attention_backward(p, on(stream)); }
int launch_sort_slots(const cpu::SortSlotsProblem& p, void* stream) { return sort_slots(p, on(stream)); }
int launch_gather_rows(const cpu::GatherRowsProblem& p, void* stream) { return gather_rows(p, on(stream)); }
int launch_sum_slots(const cpu::SumSlotsProblem& p, void* stream) { return sum_slots(p, on(stream)); }
int launch_topk_softmax(const cpu::TopkSoftmaxProblem& p, void* stream) { return topk_softmax(p, on(stream)); }
int launch_topk_softmax_backward(const cpu::TopkSoftmaxProblem& p, void* stream) { return topk_softmax_backward(p, on(stream)); }
int launch_adamw(const cpu::AdamwProblem& p, void* stream) { return adamw(p, on(stream)); }
int launch_momentum(const cpu::MomentumProblem& p, void* stream) { return momentum(p, on(stream)); }
int launch_apply_direction(const cpu::ApplyProblem& p, void* stream) { return apply_direction(p, on(stream)); }
int launch_fill_normal(const InitialiseProblem& p, void* stream) { return fill_normal(p, on(stream)); }
int launch_symmetric_matmul(const SymmetricMatmulProblem& p, void* stream) { return symmetric_matmul(p, on(stream)); }
int prefers_symmetric_matmul(int device) { return has_fast_matrices(device) ? 1 : 0; }
int launch_round_terms(const cpu::RoundProblem& p, void* stream) { return round_terms(p, on(stream)); }
int launch_square_sum(const cpu::SquareSumProblem& p, void* stream) { return square_sum(p, on(stream)); }
int launch_add_chunks(const cpu::ChunkSumProblem& p, void* stream) { return add_chunks(p, on(stream)); }
int launch_digest(const cpu::DigestProblem& p, void* stream) { return digest(p, on(stream)); }

}  // namespace ingot::kernels::gpu
