// Matrices that decoding multiplies a few rows with, as they lie in a parameter or packed in fewer bits.
#pragma once

#include <span>
#include <vector>

#include "kernels/cpu/rows_few_products.h"
#include "layers/parameter.h"
#include "models/decode/step.h"

namespace ingot::models::decode {

/// [outputs, inputs]; of a stack of them, one.
struct Matrix {
  kernels::WeightFormat format = kernels::WeightFormat::fp32;
  int64_t outputs = 0, inputs = 0;
  at::Tensor weights, scales;  // kernels/weight_format.h; of fp32 and bf16 the parameter's own memory
};

/// Whether it can be multiplied with here: all of it is, on a CPU, and nothing is added to it or rounded.
bool is_plain(const layers::Parameter& parameter);

/// Of a matrix or a stack of them, each one's outputs cut into `parts` equal ones. With scales the parameter's value is rounded to what the
/// packed weights stand for, so that passes of other kinds compute with the same.
std::vector<Matrix> matrices_of(layers::Parameter& parameter, kernels::WeightFormat format, int64_t parts = 1);

struct Product {
  const Matrix* matrix = nullptr;
  float* out = nullptr;  // [rows, out_stride]
  int64_t out_stride = 0;
  const float* bias = nullptr;  // [outputs] or null
};

/// What is multiplied: rows of fp32.
struct Rows {
  const float* x = nullptr;
  int64_t stride = 0, count = 0;
  const int64_t* rows = nullptr;  // which of x they are; null: the first ones
};

/// x times each of the matrices, which have the same number of inputs and the same format. Of each one's outputs the worker makes
/// own_share().
void multiply(Pass& pass, const Rows& x, std::span<const Product> products, const Worker& worker);

/// A worker's outputs, in whole blocks.
tensor::Range own_share(int64_t outputs, const Worker& worker);

}  // namespace ingot::models::decode
