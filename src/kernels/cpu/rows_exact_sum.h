// Sums that are exact (kernels/exact_sum.h).
#pragma once

#include "kernels/cpu/rows.h"

namespace ingot::kernels::cpu {

/// A row is an element.
struct RoundProblem {
  int64_t rows;
  const float* terms;
  double* sum;
  double shift;  // 1.5 * 2^(52 + exponent): between 2^(52 + exponent) and its double, fp64 has multiples of 2^exponent alone
  bool adds;
};

/// A row is a chunk of elements.
struct SquareSumProblem {
  static constexpr int64_t kChunk = 16384, kBlock = 32, kParts = 3;
  int64_t rows, elements;
  const float* x;
  double* sums;           // [rows, kParts]
  double shifts[kParts];  // as above, of each part
};

INGOT_ROW_KERNEL(round_terms, const RoundProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(square_sum, const SquareSumProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
