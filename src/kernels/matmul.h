// GEMMs with a stated output dtype: bf16 operands may accumulate into and leave as fp32. On a CPU without bf16
// instructions bf16 operands are upcast and multiplied in fp32, which is several times faster than the library's emulation; kernels of
// our own (cpu_matmul.h) sum them in fp32 as they are. Nothing here records gradients: callers are autograd functions.
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

/// a [m, k] times b [k, n] (either may be a transposed view) -> [m, n] of `dtype`.
at::Tensor matmul(const at::Tensor& a, const at::Tensor& b, at::ScalarType dtype);

/// out = (overwrite ? 0 : out) + a b. `out` [m, n] may be a view with unit column stride, in fp32 or wider than a and b.
void matmul_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool overwrite);

/// out = a b + bias [n], all of one dtype: in one pass on a GPU, whose libraries do that at a GEMM's end.
void matmul_with_bias_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias);

/// out = a b where the number of rows is another each time, as experts' are. oneDNN makes a kernel for every number of rows that it has not
/// met, which takes longer than most GEMMs and stays in memory: its dtypes go there by a fixed number of rows, and the rest elsewhere.
void matmul_of_any_rows_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b);

/// alpha a b + beta c, each rounded once: a [batch, m, k], b [batch, k, n], c [batch, m, n] with unit column stride or undefined, of one
/// dtype.
at::Tensor baddbmm(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b, double beta, double alpha);

/// Whether this CPU multiplies bf16 matrices in hardware (AVX-512 BF16 or AMX).
bool cpu_has_bf16_products();

}  // namespace ingot::kernels
