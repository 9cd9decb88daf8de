// Sums that are exact. All loops run over elements that have nothing to do with each other, but for the last few halves of a block.
#include "kernels/cpu/rows_exact_sum.h"

#include "kernels/cpu/simd.h"
#include "kernels/cpu/tensor_table.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kBlock = SquareSumProblem::kBlock;

// Halves are added to halves: 16, 8, 4, 2, 1. The squares of fp32 are exact in fp64.
INGOT_INLINE double block_sum(const float* x) {
  double squares[kBlock];
  for (int64_t i = 0; i < kBlock; ++i) squares[i] = static_cast<double>(x[i]) * static_cast<double>(x[i]);
  for (int64_t i = 0; i < 16; ++i) squares[i] += squares[i + 16];
  for (int64_t i = 0; i < 8; ++i) squares[i] += squares[i + 8];
  for (int64_t i = 0; i < 4; ++i) squares[i] += squares[i + 4];
  for (int64_t i = 0; i < 2; ++i) squares[i] += squares[i + 2];
  return squares[0] + squares[1];
}

}  // namespace

void round_terms(const RoundProblem& p, int64_t begin, int64_t end) {
  const double shift = p.shift;
  const float* terms = p.terms;
  double* sum = p.sum;
  if (p.adds)
    for (int64_t i = begin; i < end; ++i) sum[i] += (static_cast<double>(terms[i]) + shift) - shift;
  else
    for (int64_t i = begin; i < end; ++i) sum[i] = (static_cast<double>(terms[i]) + shift) - shift;
}

void square_sum(const SquareSumProblem& p, int64_t first, int64_t last) {
  for_each_chunk(p, first, last, [&](const SquareSumProblem::Tensor& tensor, int64_t begin, int64_t end, int64_t chunk) {
    double parts[SquareSumProblem::kParts] = {};
    for (int64_t at = begin; at < end; at += kBlock) {
      float padded[kBlock] = {};
      const float* x = tensor.data + at;
      if (end - at < kBlock) {
        for (int64_t i = 0; i < end - at; ++i) padded[i] = x[i];
        x = padded;
      }
      double rest = block_sum(x);
      for (int i = 0; i < SquareSumProblem::kParts; ++i) {
        const double part = (rest + p.shifts[i]) - p.shifts[i];
        parts[i] += part;
        rest -= part;
      }
    }
    for (int i = 0; i < SquareSumProblem::kParts; ++i) p.sums[chunk * SquareSumProblem::kParts + i] = parts[i];
  });
}

void add_chunks(const ChunkSumProblem& p, int64_t first, int64_t last) {
  constexpr int64_t kParts = SquareSumProblem::kParts;
  for (int64_t row = first; row < last; ++row) {
    double sums[kParts] = {};
    for (int64_t chunk = p.first_chunk[row]; chunk < p.first_chunk[row + 1]; ++chunk)
      for (int64_t i = 0; i < kParts; ++i) sums[i] += p.of_chunks[chunk * kParts + i];
    for (int64_t i = 0; i < kParts; ++i) p.sums[row * kParts + i] = sums[i];
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
