// Matrices of fp32 and bf16 on CPUs by kernels of our own (cpu/gemm.h), which take any size without making code for it first, sum in fp32,
// and give each row the same bits whatever the other rows and the number of threads are.
#pragma once

#include "device/aten.h"
#include "kernels/cpu/gemm.h"

namespace ingot::kernels {

/// Whether matrices of this CPU can be multiplied so: fp32 with AVX2 or AVX-512, bf16 where there is a unit for it (pair_unit_of_matrices).
bool has_own_matmul(at::ScalarType dtype);

/// Whether that is the default: in bf16 wherever there is one; in fp32 on AMD CPUs with AVX-512, of which MKL uses half the width (Zen 5:
/// 108 of 250 GFLOP/s a core).
bool prefers_own_matmul(at::ScalarType dtype);

/// Whether a and b are multiplied so where the result is of dtype `out`: matrices of a CPU, by the choice of `gemm_backend`.
bool takes_own_matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out);

const cpu::GemmKernel& best_gemm_kernel(at::ScalarType dtype);

/// What becomes of a product.
struct MatmulTerms {
  double scale = 1;
  at::Tensor other{};  // [m, n] of the operands' dtype with unit column stride: other_scale times it is added; the result is of that dtype
  double other_scale = 0;
  bool is_symmetric = false;  // a b is, and other: half of it is multiplied, out[i][j] and out[j][i] the same to the bit
};

/// out [m, n] = (overwrite ? 0 : out) + scale a [m, k] b [k, n] + ...: a and b both fp32 or both bf16, in any strides, out of their dtype
/// or fp32 with unit column stride; all of a CPU. Work areas: b packed, and a too where it lies by columns or does not suit L1. `kernel`:
/// of the operands' dtype.
void own_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const MatmulTerms& terms = {});
void own_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const MatmulTerms& terms,
                     const cpu::GemmKernel& kernel);

}  // namespace ingot::kernels
