// Quantization by emulation (operand.h has GEMMs): operands of a GEMM rounded to what FP8 or FP4 holds, in the dtype that they have. A
// rounded number has at most six significant bits and is exact in bf16: a bf16 GEMM of rounded operands, summed in fp32, gives what a GEMM
// of the format gives. docs/fp8.md says which format goes where and why.
//
// Formats: OCP 8-bit floating point specification 1.0 (e4m3 to 448, e5m2 to 57344); MX: OCP microscaling formats 1.0; blocks: DeepSeek-V3,
// arXiv:2412.19437, section 3.3; NVFP4 and how to train in it: arXiv:2509.25149.
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

/// fp8: a scale for all of an operand. fp8_block: for 128 x 128 of a weight, for 128 elements along the summed dimension of others. mxfp8:
/// for 32 elements along the summed dimension of any. nvfp4: for 16 x 16 of a weight, for 16 elements along the summed dimension of others.
enum class Quantization { fp8, fp8_block, mxfp8, nvfp4 };
/// expert_gradient: of experts' outputs, a gradient in e4m3 under `fp8`, since grouped GEMMs in 8 bits take no e5m2.
enum class OperandKind { activation, weight, gradient, expert_gradient };

/// x [m, n] in fp32 or bf16, rounded; `summed`: the dimension that the GEMM sums over, 0 or 1. A magnitude that is not finite leaves NaNs.
/// Limit: memory, one read and one write; under fp8 two reads.
///
/// FP8: each element to the nearest (ties to even) that e4m3, or e5m2 for gradients under `fp8`, holds times the power of two by which the
/// largest magnitude that shares it just fits; scales from 2^-100 to 2^100.
///
/// nvfp4: elements are e2m1 (to 6), a block's scale is e4m3, and the operand's the power of two by which the largest of those just fits.
/// Gradients are rounded up or down by chance, drawn from a hash of the element's place and bits: the same in every run. What is summed
/// over tokens is rotated before, 16 tokens at a time, by a Hadamard matrix with signs by chance, which the GEMM's other operand takes
/// back.
at::Tensor quantize(const at::Tensor& x, Quantization quantization, OperandKind kind, int64_t summed);

/// The largest magnitude of x [m, n], fp32 [1]; NaNs may be passed over.
at::Tensor largest_magnitude(const at::Tensor& x);

}  // namespace ingot::kernels
