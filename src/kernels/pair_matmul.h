// Matrices of bf16 on CPUs by kernels of our own (cpu/pair_gemm.h), which sum in fp32 and take any size without making code for it first.
#pragma once

#include "device/aten.h"
#include "kernels/cpu/pair_gemm.h"

namespace ingot::kernels {

/// Whether bf16 matrices of this CPU are multiplied so: where it has AMX. Libraries are not slower elsewhere, or were not measured.
bool has_pair_matmul();

/// Whether a and b are multiplied so where the result is of dtype `out`: matrices of a CPU in bf16, with the default `gemm_backend`.
bool takes_pair_matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType out);

const cpu::PairGemmKernel& best_pair_gemm();

/// What becomes of a product.
struct PairTerms {
  double scale = 1;
  at::Tensor other{};  // bf16 [m, n] with unit column stride: other_scale times it is added; with results in bf16
  double other_scale = 0;
  bool is_symmetric = false;  // a b is, and other: half of it is multiplied, out[i][j] and out[j][i] the same to the bit; in bf16
};

/// out [m, n] = (overwrite ? 0 : out) + scale a [m, k] b [k, n] + ...: a and b in bf16, in any strides, out in fp32 or bf16 with unit
/// column stride; all of a CPU. Work areas: b packed, and a too where it lies by columns or its sizes are no multiples of 32. Results do
/// not depend on the number of threads.
void pair_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const PairTerms& terms = {},
                      const cpu::PairGemmKernel& kernel = best_pair_gemm());

}  // namespace ingot::kernels
