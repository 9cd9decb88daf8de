// GEMMs of groups of rows that lie one behind the other, whose ends only the device knows: experts' products without a host that waits for
// their sizes. libtorch's kernel (CUTLASS) on GPUs of sm_90 and later, its loop over groups on others. Nothing here records gradients.
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

/// Whether there are such GEMMs of rows [r, k] with weights [groups, k or n, n or k]: bf16 on a GPU, both sides multiples of 8.
bool takes_grouped_matmul(const at::Tensor& rows, const at::Tensor& weights);

/// rows [r, k], of which group g has [ends[g - 1], ends[g]), times weights[g] [k, n] (may be transposed views) -> [r, n]. ends: int32
/// [groups]; the last one should be r, since rows behind it are left as they were allocated.
at::Tensor grouped_matmul(const at::Tensor& rows, const at::Tensor& weights, const at::Tensor& ends);

/// out[g] [m, n] = (overwrite ? 0 : out[g]) + a^T b over the rows of group g; a [r, m], b [r, n], out fp32 or bf16. Each product is summed
/// in fp32 and rounded to bf16 once before it is added.
void grouped_gradient_into(at::Tensor out, const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends, bool overwrite);

}  // namespace ingot::kernels
