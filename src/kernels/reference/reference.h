// Plain ATen compositions of every kernel: any dtype, any device, gradients by autograd. They are the fall-back where no
// fused kernel exists (fp64, GPUs) and the oracle of those that do.
#pragma once

#include "kernels/activation.h"
#include "kernels/cca.h"
#include "kernels/norm.h"
#include "kernels/rope.h"
#include "kernels/routing.h"
#include "kernels/topk_softmax.h"

namespace ingot::kernels::reference {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType out);
at::Tensor join_residual(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale);
at::Tensor glu(const at::Tensor& gate_up, Gate gate);
/// Its two factors, of the first half and of the second, x being of a dtype wide enough.
at::Tensor activated(const at::Tensor& x, Gate gate);
at::Tensor multiplier(const at::Tensor& x, Gate gate);
at::Tensor rotate(const at::Tensor& x, const RotaryTable& table);
std::tuple<at::Tensor, at::Tensor, at::Tensor> split_and_rotate(const at::Tensor& packed, int64_t heads, int64_t kv_heads, int64_t head_dim,
                                                                const RotaryTable& table);
std::tuple<at::Tensor, at::Tensor, at::Tensor> cca_mix(const at::Tensor& packed, const CcaShape& shape, const CcaWeights& weights,
                                                       const RotaryTable& table, const at::Tensor& is_start, const CcaTail& tail);
/// Of x [m, n], in tiles; `format`: e4m3fn or e5m2 (kernels/quantization.h).
at::Tensor round_to_fp8(const at::Tensor& x, int64_t tile_rows, int64_t tile_columns, at::ScalarType format);
/// Of x [m, n], in tiles, computed in fp32 whatever x is (kernels/quantization.h).
at::Tensor round_to_nvfp4(const at::Tensor& x, int64_t tile_rows, int64_t tile_columns, bool is_stochastic);
SortedSlots sort_slots(const at::Tensor& choice, int64_t experts);
at::Tensor gather_rows(const at::Tensor& x, const at::Tensor& order, int64_t top_k, at::ScalarType out);
at::Tensor sum_slots(const at::Tensor& x, const at::Tensor& inverse, int64_t top_k, at::ScalarType out);
/// int64 [2] of x, contiguous.
at::Tensor digest(const at::Tensor& x);
TopkSoftmax topk_softmax(const at::Tensor& logits, const at::Tensor& bias, int64_t top_k, bool renormalises, const ChangeChoice& change);

/// fp32 for narrower floats, the dtype itself otherwise.
inline at::ScalarType accumulation_type(at::ScalarType dtype) { return dtype == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace ingot::kernels::reference
