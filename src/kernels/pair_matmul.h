// Matrices of bf16 on CPUs by kernels of our own (cpu/pair_gemm.h), which sum in fp32 and take any size without making code for it first.
#pragma once

#include "device/aten.h"
#include "kernels/cpu/pair_gemm.h"

namespace ingot::kernels {

/// Whether bf16 matrices of this CPU are multiplied so: where it has AMX. Libraries are not slower elsewhere, or were not measured.
bool has_pair_matmul();

/// out [m, n] = (overwrite ? 0 : out) + a [m, k] b [k, n]: a and b in bf16, in any strides, out in fp32 or bf16 with unit column stride;
/// all of a CPU. Work areas: b packed, and a too where it lies by columns or its sizes are no multiples of 32. Results do not depend on the
/// number of threads.
void pair_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite);
void pair_matmul_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b, bool overwrite, const cpu::PairGemmKernel& kernel);

}  // namespace ingot::kernels
