// Operands of GEMMs as a precision has them: as they are, rounded to FP8 in their own dtype (fp8.h), or in 8 bits for a GPU that multiplies
// those. docs/fp8.md says which when.
#pragma once

#include <optional>
#include <vector>

#include "device/aten.h"
#include "kernels/quantization.h"

namespace ingot::kernels {

struct Operand {
  /// [rows, elements that are summed over]; may be a transposed view. e4m3 or e5m2, whose rows lie together, when there is a scale.
  at::Tensor values;
  /// fp32 [], by which `values` are to be multiplied; undefined: they are the numbers.
  at::Tensor scale;

  bool has_codes() const { return scale.defined(); }
};

/// x [m, n], fp32 or bf16, for a GEMM that sums over its dimension `summed`. Without `quantization` x as it is.
Operand operand_of(const at::Tensor& x, std::optional<Quantization> quantization, OperandKind kind, int64_t summed);

/// a [m, k], b [n, k] -> a bᵀ [m, n] of `dtype`, summed in fp32.
at::Tensor matmul(const Operand& a, const Operand& b, at::ScalarType dtype);
/// out = (overwrite ? 0 : out) + a bᵀ, as matmul_into of kernels/matmul.h.
void matmul_into(at::Tensor out, const Operand& a, const Operand& b, bool overwrite);
/// out = a bᵀ + bias [n], as matmul_with_bias_into of kernels/matmul.h.
void matmul_with_bias_into(at::Tensor out, const Operand& a, const Operand& b, const at::Tensor& bias);
/// out = (overwrite ? 0 : out) + a bᵀ where the number of a's or b's rows is another each time.
struct MatmulOfAnyRows {
  at::Tensor out;
  Operand a, b;
  bool overwrite = true;
};
/// All of them; on a CPU whose matmuls are by kernels of our own their work is shared out over the threads together.
void matmuls_of_any_rows_into(const std::vector<MatmulOfAnyRows>& all);

}  // namespace ingot::kernels
