// Batched matmuls of matrices with their own transposes, of which half is computed: what Newton-Schulz multiplies
// (optim/newton_schulz.h). Nothing here records gradients.
#pragma once

#include "device/aten.h"
#include "kernels/gpu/symmetric_matmul_problem.h"

namespace ingot::kernels {

/// alpha p p^T + beta c. p [batch, m, k]; c [batch, m, m], symmetric, or undefined -> [batch, m, m] of their dtype, contiguous.
/// In bf16 on GPUs, where m and the strides are multiples of 8 elements, by a kernel of our own (gpu/symmetric_matmul.h), as emulated and
/// counting devices have it, but not where mma.sync is slow (Blackwell's data centre GPUs): of tiles of 128 x 128 those on and above the
/// diagonal, sums in fp32 that are rounded once, out[i][j] and out[j][i] the same to the bit. So do CPUs, by tiles or strips. Elsewhere
/// ATen's batched GEMM, whole.
at::Tensor symmetric_matmul(const at::Tensor& p, const at::Tensor& c = {}, double alpha = 1, double beta = 1);

/// What lies in those tiles.
double symmetric_matmul_flops(int64_t batch, int64_t m, int64_t k, int64_t tile = gpu::kSymmetricTile);

}  // namespace ingot::kernels
