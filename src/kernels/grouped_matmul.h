// GEMMs of groups of rows that lie one behind the other, whose ends only the device knows: experts' products without a host that waits for
// their sizes. libtorch's kernel (CUTLASS) on GPUs of sm_90 and later, its loop over groups on others. Nothing here records gradients.
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

/// Whether there are such GEMMs of rows [r, k] with weights [groups, k or n, n or k]: bf16 on a GPU, both sides multiples of 8, fewer than
/// 1,024 groups.
bool takes_grouped_matmul(const at::Tensor& rows, const at::Tensor& weights);

/// rows [r, k], of which group g has [ends[g - 1], ends[g]), times weights[g] [k, n] (may be transposed views) -> [r, n]. ends: int32
/// [groups]; the last one should be r, since rows behind it are left as they were allocated.
at::Tensor grouped_matmul(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& ends);

/// out[g] [m, n] = (overwrite ? 0 : out[g]) + a^T b over the rows of group g; a [r, m], b [r, n], out fp32 or bf16. Each product is summed
/// in fp32 and rounded to bf16 once before it is added.
void grouped_gradient_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends, bool overwrite);

/// An operand of such a GEMM in 8 bits (grouped_operand.h makes them). The products below are summed in fp32 and are bf16.
struct GroupedCodes {
  at::Tensor values;  // e4m3
  at::Tensor scales;  // fp32, by which values are to be multiplied
};

/// rows: values [r, k], scales [r]; weights: values [groups, k, n] whose columns lie together, scales [groups, n]. Sides are multiples of
/// 16. Else as above.
at::Tensor grouped_matmul(const GroupedCodes& rows, const GroupedCodes& weights, const at::Tensor& ends);

/// a: values [m, r], scales [groups * m]; b: values [n, r], scales [groups * n]; group g has their columns [ends[g - 1], ends[g]), of which
/// 16 divides the number, not 0. m, n and r are multiples of 16. `rows`: how many of the columns a trace counts. Else as above.
void grouped_gradient_into(at::Tensor out, const GroupedCodes& a, const GroupedCodes& b, const at::Tensor& ends, int64_t rows,
                           bool overwrite);

}  // namespace ingot::kernels
