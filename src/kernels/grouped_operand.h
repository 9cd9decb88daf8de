// GEMMs of sorted rows of groups with a weight for each group, in a precision: of the operands as they are, or in 8 bits under `fp8`, for
// which a group's rows and its weight have a scale each, as they have where groups are multiplied one by one (operand.h). The host learns
// of no group how many rows it has. Nothing here records gradients.
//
// libtorch's grouped GEMM of codes (2.11) takes e4m3 alone, so gradients are e4m3, too (OperandKind::expert_gradient). It sums over
// multiples of 16: for weights' gradients each group's rows are laid out from a multiple of 16 on, with zeros behind them. It is compiled
// for sm_90a alone.
#pragma once

#include <optional>

#include "kernels/grouped_matmul.h"
#include "kernels/quantization.h"
#include "kernels/routing.h"

namespace ingot::kernels {

class GroupedGemms {
 public:
  /// Whether `rows` rows are multiplied with weights [groups, n, k], bf16. As takes_grouped_matmul without `quantization`; under `fp8` on a
  /// GPU of compute capability 9.0, sides are multiples of 16; in other formats never.
  static bool take(const at::Tensor& weights, int64_t rows, std::optional<Quantization> quantization);

  /// Rows that are not routed are multiplied, too, have a scale of their own and do not count for weights' gradients in 8 bits.
  GroupedGemms(const SortedSlots& slots, std::optional<Quantization> quantization)
      : ends_(slots.ends), is_routed_(slots.is_routed), quantization_(quantization) {}

  /// x [rows, k], weights [groups, n, k] -> x weightsᵀ [rows, n]
  at::Tensor forward(const at::Tensor& x, const at::Tensor& weights) const;
  /// grad [rows, n], weights [groups, n, k] -> grad weights [rows, k]
  at::Tensor grad_input(const at::Tensor& grad, const at::Tensor& weights) const;
  /// out[g] [n, k] = (overwrite ? 0 : out[g]) + gradᵀ x over the rows of group g; out fp32 or bf16, each product rounded to bf16 before.
  void grad_weight_into(at::Tensor out, const at::Tensor& grad, const at::Tensor& x, bool overwrite) const;

 private:
  at::Tensor ends_, is_routed_;
  std::optional<Quantization> quantization_;
};

}  // namespace ingot::kernels
