// FP8 by emulation (operand.h has GEMMs): operands of a GEMM rounded to what FP8 holds, in the dtype that they have. Scales are powers of
// two, so that a rounded number times its scale has at most four significant bits and is exact in bf16: a bf16 GEMM of rounded operands,
// summed in fp32, gives what an FP8 GEMM gives. docs/fp8.md says which format goes where and why.
//
// Formats: OCP 8-bit floating point specification 1.0 (e4m3 to 448, e5m2 to 57344); MX: OCP microscaling formats 1.0; blocks: DeepSeek-V3,
// arXiv:2412.19437, section 3.3.
#pragma once

#include <ATen/ATen.h>

namespace ingot::kernels {

/// What shares a scale. tensor: all of an operand. block: 128 x 128 of a weight, 128 elements along the summed dimension of others. mx: 32
/// elements along the summed dimension of any.
enum class Fp8Scaling { tensor, block, mx };
/// Gradients under `tensor` are e5m2, everything else e4m3.
enum class Fp8Operand { activation, weight, gradient };

/// x [m, n] in fp32 or bf16, each element rounded to the nearest (ties to even) that FP8 holds times the power of two by which the largest
/// magnitude that shares it just fits; scales from 2^-100 to 2^100. `summed`: the dimension that the GEMM sums over, 0 or 1. A magnitude
/// that is not finite leaves NaNs. Limit: memory, one read and one write; under `tensor` two reads.
at::Tensor round_to_fp8(const at::Tensor& x, Fp8Scaling scaling, Fp8Operand operand, int64_t summed);

/// The largest magnitude of x [m, n], fp32 [1]; NaNs may be passed over.
at::Tensor largest_magnitude(const at::Tensor& x);

}  // namespace ingot::kernels
