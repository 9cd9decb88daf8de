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
  const int64_t* x_rows;  // which row of x each is, or null: they lie as they come; x16 and x8 always do
  // Made by round_few_rows. Of formats with scales x in integers, [rows, padded_inputs]: of int8 with 16 bits, whose errors are 2^-16 of a
  // row's largest value; of int4 with 8, whose errors are 2^-8 of a group's. Of bf16, where x16 is not null (best_pair_unit), bf16
  // [rows, paired_inputs].
  int16_t* x16;
  int8_t* x8;
  float* x_scale;            // [rows]
  float *x_scales, *x_sums;  // of int4, [rows, padded_inputs / kWeightGroup]: scales, and -8 times the sums of the integers
  WeightFormat format;
  const void* weights;  // [outputs, row_bytes], or panels of them (weight_format.h)
  const float* scales;
  const float* bias;  // [outputs] or null
  float* out;
  int64_t out_stride;
};

/// Inputs that a row of x in bf16 has room for.
constexpr int64_t paired_inputs(int64_t inputs) { return (inputs + 31) / 32 * 32; }

/// What is made of x, of rows [begin, end).
INGOT_ROW_KERNEL(round_few_rows, const FewProductsProblem&, int64_t begin, int64_t end);
/// Outputs [begin, end) of all rows; of formats with scales `begin` is a multiple of kWeightPanel. Limit: memory for up to about eight
/// rows.
INGOT_ROW_KERNEL(few_products, const FewProductsProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
