// Words that operators are written in.
#pragma once

#include <algorithm>

#include "kernels/operator.h"

namespace ingot::kernels {

// Sizes to measure.

/// Tokens of microbatches, `factor` rows each.
std::vector<int64_t> token_rows(bool quick, int64_t factor = 1);
/// low, 2 low, 4 low … high; `quick`: both ends.
std::vector<int64_t> doubling(int64_t low, int64_t high, bool quick);
std::vector<Size> grid(const std::vector<int64_t>& rows, const std::vector<int64_t>& widths);

// Sizes of traced kernels.

int64_t elements(const device::Trace::TensorShape& shape);
inline Size rows_by_last(const device::Trace::TensorShape& shape) { return {elements(shape) / shape.sizes.back(), shape.sizes.back()}; }
/// [rows, width] of the kernel's input or output of that number.
template <size_t which>
Size size_of_input(const Shapes& inputs, const Shapes&) {
  return rows_by_last(inputs.at(which));
}
template <size_t which>
Size size_of_output(const Shapes&, const Shapes& outputs) {
  return rows_by_last(outputs.at(which));
}

// Costs.

inline int64_t bytes_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }
/// What cpu::sum_over_rows allocates and drops for `width` sums.
int64_t row_sums_scratch(int64_t rows, int64_t width);

// Objects.

/// What differs between kernels that a model calls once in a layer on all of its tokens and that have a fused backward.
struct TokenKernel {
  std::string_view name, backward_name;  // as traced
  WorkKind kind;
  Size (*forward_size)(const Shapes& inputs, const Shapes& outputs);
  Size (*backward_size)(const Shapes& inputs, const Shapes& outputs);
  OperatorCall (*make)(const OperatorSizes& sizes);
  OperatorCost (*cost)(const OperatorSizes& sizes);
  std::vector<Size> checked;
  std::vector<device::Target> fused_on = {device::Target::cpu};
};
/// Measured with the tokens and widths of models.
Operator token_operator(TokenKernel kernel);

}  // namespace ingot::kernels
