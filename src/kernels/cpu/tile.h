// Products of small tiles that stay in cache, by a register-blocked kernel. The right operand B [depth, columns] is packed in
// panels of kPanel columns: panel after panel, each [depth, its width] row-major, so that one row of a panel is one or two
// vectors; columns are padded to whole vectors with zeros. The left operand is read element by element and may be stored by
// rows or by columns. Limit: kBlockRows * 2 fused multiply-adds for kBlockRows broadcasts and 2 loads, so the multipliers are
// the bottleneck from a depth of about 50 on (measured 85 to 95 % of their peak).
#pragma once

#include "kernels/cpu/simd.h"

namespace ingot::kernels::cpu::INGOT_ISA {

inline constexpr int kPanel = 2 * kLanes;
inline constexpr int kBlockRows = kLanes >= 16 ? 12 : 6;  // accumulators fill the registers: 12 of 16, or 24 of 32

enum class Into { scaled, added };  // C = factor * A B, or C += A B

struct Range {
  int64_t begin, end;
};

// Of a square of kLanes vectors: rows become columns. Bit by bit of the lane's number, the halves of two rows change places.
template <int kStep = 1>
INGOT_INLINE void transpose(Float (&x)[kLanes]) {
  if constexpr (kStep < kLanes) {
    const Int lane = lane_index(), is_upper = (lane & kStep) != 0;
    const Int lower = is_upper ? lane + (kLanes - kStep) : lane, upper = is_upper ? lane + kLanes : lane + kStep;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & kStep) continue;
      const Float a = x[i], b = x[i + kStep];
      x[i] = __builtin_shuffle(a, b, lower);
      x[i + kStep] = __builtin_shuffle(a, b, upper);
    }
    transpose<2 * kStep>(x);
  }
}

// to[c * to_step + r] = from[r * from_step + c] for one square, of which `rows` exist (others are written as 0) and `columns` are written.
INGOT_INLINE void transpose_square(const float* from, int64_t from_step, int64_t rows, int64_t columns, float* to, int64_t to_step) {
  Float x[kLanes];
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i) x[i] = i < rows ? load(from + i * from_step) : Float{};
  transpose(x);
#pragma GCC unroll 16
  for (int i = 0; i < kLanes; ++i)
    if (i < columns) store(to + i * to_step, x[i]);
}

template <Into kInto, bool kByColumns, int kVectors, int kRows>
void product_block(int64_t depth, const float* a, int64_t a_step, const float* b, float* c, int64_t c_step, float factor) {
  Float sum[kRows][kVectors] = {};
  const int64_t row_step = kByColumns ? 1 : a_step, depth_step = kByColumns ? a_step : 1;
  for (int64_t d = 0; d < depth; ++d) {
    Float right[kVectors];
    for (int j = 0; j < kVectors; ++j) right[j] = load(b + j * kLanes);
#pragma GCC unroll 16
    for (int i = 0; i < kRows; ++i) {
      const Float left = broadcast(a[i * row_step]);
      for (int j = 0; j < kVectors; ++j) sum[i][j] += left * right[j];
    }
    a += depth_step;
    b += kVectors * kLanes;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kRows; ++i)
    for (int j = 0; j < kVectors; ++j) {
      float* to = c + i * c_step + j * kLanes;
      store(to, kInto == Into::added ? load(to) + sum[i][j] : factor * sum[i][j]);
    }
}

using ProductBlock = void (*)(int64_t depth, const float* a, int64_t a_step, const float* b, float* c, int64_t c_step, float factor);

template <int... kRows>
struct RowCounts {};
template <int kCount, int... kRows>
struct UpTo : UpTo<kCount - 1, kCount, kRows...> {};
template <int... kRows>
struct UpTo<0, kRows...> {
  using Type = RowCounts<kRows...>;
};

template <Into kInto, bool kByColumns, int kVectors, int... kRows>
INGOT_INLINE ProductBlock block_of(int64_t rows, RowCounts<kRows...>) {
  static constexpr ProductBlock kBlocks[] = {product_block<kInto, kByColumns, kVectors, kRows>...};
  return kBlocks[rows - 1];
}

// The kernel for `rows` (1 to kBlockRows) by one or two vectors.
template <Into kInto, bool kByColumns>
INGOT_INLINE ProductBlock block_for(int64_t rows, bool wide) {
  using Counts = typename UpTo<kBlockRows>::Type;
  return wide ? block_of<kInto, kByColumns, 2>(rows, Counts{}) : block_of<kInto, kByColumns, 1>(rows, Counts{});
}

// C [rows, columns] = factor * A [rows, depth] B. Only rows_of(columns [begin, end) of a panel) are computed for each panel.
template <class RowsOf>
INGOT_INLINE void product_of_rows(int64_t columns, int64_t depth, const float* a, int64_t a_step, const float* b, float* c, int64_t c_step,
                                  float factor, const RowsOf& rows_of) {
  for (int64_t column = 0; column < columns; column += kPanel) {
    const bool wide = columns - column > kLanes;
    const Range rows = rows_of(Range{column, smaller(column + kPanel, columns)});
    for (int64_t row = rows.begin; row < rows.end; row += kBlockRows) {
      const auto block = block_for<Into::scaled, false>(smaller(kBlockRows, rows.end - row), wide);
      block(depth, a + row * a_step, a_step, b + column * depth, c + row * c_step + column, c_step, factor);
    }
  }
}

// C [rows, columns] += A [rows, depth] B, A stored by columns when kByColumns (element (r, d) at a[d * a_step + r]). For each
// block of rows only the depth range depth_of(rows [begin, end)) is added up; depth is the number of rows of a panel of B.
template <bool kByColumns, class DepthOf>
INGOT_INLINE void add_product(int64_t rows, int64_t columns, int64_t depth, const float* a, int64_t a_step, const float* b, float* c,
                              int64_t c_step, const DepthOf& depth_of) {
  for (int64_t column = 0; column < columns; column += kPanel) {
    const bool wide = columns - column > kLanes;
    for (int64_t row = 0; row < rows; row += kBlockRows) {
      const int64_t count = smaller(kBlockRows, rows - row);
      const Range range = depth_of(Range{row, row + count});
      if (range.begin >= range.end) continue;
      const float* left = kByColumns ? a + range.begin * a_step + row : a + row * a_step + range.begin;
      const float* right = b + column * depth + range.begin * (wide ? kPanel : kLanes);
      block_for<Into::added, kByColumns>(count, wide)(range.end - range.begin, left, a_step, right, c + row * c_step + column, c_step, 1);
    }
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
