// A matrix times a few rows, as decoding has them: every weight is read once and goes to all rows.
#pragma once

#include "kernels/cpu/rows.h"
#include "kernels/weight_format.h"

namespace ingot::kernels::cpu {

/// out[row, o] = x[row] . weights[o] + bias[o]. A product is summed up in the same order whatever other rows and outputs there are.
struct FewProductsProblem {
  int64_t rows, inputs;
  const float* x;  // [rows, inputs] with stride x_stride; of formats without scales
  int64_t x_stride;
  const int64_t* x_rows;  // which row of x each is, or null: they lie as they come; x16 always does
  // Of formats with scales: x in 16 bits, [rows, padded_inputs], the scale of each row, and the sums of its groups, both made by
  // round_few_rows. Errors are 2^-16 of a row's largest value.
  int16_t* x16;
  float *x_scale, *x_sums;  // [rows], [rows, padded_inputs / kWeightGroup]
  WeightFormat format;
  const void* weights;  // [outputs, row_bytes]
  const float* scales;  // [outputs, padded_inputs / kWeightGroup]
  const float* bias;    // [outputs] or null
  float* out;
  int64_t out_stride;
};

/// x16, x_scale and x_sums of rows [begin, end).
INGOT_ROW_KERNEL(round_few_rows, const FewProductsProblem&, int64_t begin, int64_t end);
/// Outputs [begin, end) of all rows. Limit: memory for up to about eight rows.
INGOT_ROW_KERNEL(few_products, const FewProductsProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
