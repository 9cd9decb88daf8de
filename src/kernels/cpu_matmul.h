// Matrices of fp32 and bf16 on CPUs by kernels of our own (cpu/gemm.h), which take any size without making code for it first, sum in fp32,
// and give each row the same bits whatever the other rows and the number of threads are.
#pragma once

#include <vector>

#include "device/aten.h"
#include "kernels/cpu/gemm.h"

namespace ingot::kernels {

/// Whether matrices of this CPU can be multiplied so: fp32 with AVX2 or AVX-512, bf16 where there is a unit for it (pair_unit_of_matrices).
bool has_cpu_matmul(at::ScalarType dtype);

/// Whether that is the default: in bf16 wherever there is one; in fp32 on AMD CPUs from Zen 5 on, of whose vectors MKL uses half the width
/// (108 of 250 GFLOP/s a core). Others before them were not measured.
bool prefers_cpu_matmul(at::ScalarType dtype);

/// Whether a CPU's matrices of that dtype are multiplied so, by the choice of `gemm_backend`.
bool takes_cpu_matmul(at::ScalarType dtype);
/// The same of a and b where the result is of dtype `out`.
bool takes_cpu_matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out);

/// Throws where has_cpu_matmul is false, but of fp32.
const cpu::GemmKernel& best_gemm_kernel(at::ScalarType dtype);

/// Side of the tiles of which those of a symmetric product in bf16 are left out that lie below the diagonal. In fp32 they are about as
/// large, but counted as those of symmetric_matmul_flops' own, which other libraries are given.
constexpr int64_t kCpuSymmetricTile = 32;

/// What becomes of a product.
struct MatmulTerms {
  double scale = 1;
  at::Tensor other{};  // [m, n] of the operands' dtype with unit column stride: other_scale times it is added; the result is of that dtype
  double other_scale = 0;
  bool is_symmetric = false;  // a b is, and other: half of it is multiplied; if b is a's transpose out is symmetric to the bit
};

/// out [m, n] = (overwrite ? 0 : out) + scale a [m, k] b [k, n] + ...: a and b both fp32 or both bf16, in any strides, out of their dtype
/// or fp32 with unit column stride; all of a CPU.
struct CpuMatmul {
  at::Tensor out, a, b;
  bool overwrite = true;
  MatmulTerms terms{};
};

/// All of them, their work shared out over the threads together: nothing waits between them. Work areas: b packed, and a too where it lies
/// by columns or does not suit L1, of some at a time. `kernel`: of their dtype, which must be one; null: the best one.
void cpu_matmuls_into(const std::vector<CpuMatmul>& all, const cpu::GemmKernel* kernel = nullptr);
void cpu_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const MatmulTerms& terms = {});

}  // namespace ingot::kernels
