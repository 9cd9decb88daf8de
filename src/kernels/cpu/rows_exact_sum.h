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

/// Of some tensors: a row is a chunk of one of them; one without elements has none.
struct SquareSumProblem {
  static constexpr int kMost = 128;  // a GPU's kernel is handed the whole problem
  static constexpr int64_t kChunk = 16384, kBlock = 32, kParts = 3;
  struct Tensor {
    const float* data;
    int64_t elements, first_chunk;
  };
  int64_t rows, tensors;
  Tensor of[kMost];
  double* sums;           // [rows, kParts]
  double shifts[kParts];  // as above, of each part
};

/// What the chunks of each tensor add up to: a row is a tensor.
struct ChunkSumProblem {
  static constexpr int kMost = SquareSumProblem::kMost;
  int64_t rows;
  int64_t first_chunk[kMost + 1];  // the last: the end of all
  const double* of_chunks;         // [chunks, kParts]
  double* sums;                    // [rows, kParts]
};

INGOT_ROW_KERNEL(round_terms, const RoundProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(square_sum, const SquareSumProblem&, int64_t begin, int64_t end);
INGOT_ROW_KERNEL(add_chunks, const ChunkSumProblem&, int64_t begin, int64_t end);

}  // namespace ingot::kernels::cpu
