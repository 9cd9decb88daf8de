// Elements of any dtype as numbers, for people and comparisons. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/logical_tensor.h"

namespace ingot::checkpoint {

/// The numbers of an element: two for complex dtypes, else one.
int64_t numbers_per_element(tensor::DType dtype);

/// Number `index` of little-endian elements at `data` (of any alignment). int64 beyond 2^53 is rounded.
double number_at(tensor::DType dtype, const std::byte* data, int64_t index);

/// How two lists of equally many numbers differ.
struct Difference {
  int64_t different = 0;  // numbers that are not equal; two NaNs are, whatever their payload
  double max_abs = 0;     // over numbers that both sides have; infinite when only one side is NaN or infinite
  double max_reference = 0;
  void add(tensor::DType a_dtype, const std::byte* a, tensor::DType b_dtype, const std::byte* b, int64_t numbers);
};

}  // namespace ingot::checkpoint
