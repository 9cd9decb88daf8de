// GEMMs of fp32 by fused multiply-adds of vectors (tile.h). Limit: two of them a cycle; a panel of columns streams from L2 meanwhile, 11
// bytes a cycle with AVX-512.
#include "kernels/cpu/gemm_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

// x [rows, columns] transposed; kLanes rows at most.
INGOT_INLINE void transpose_rows(const float* from, int64_t row, int64_t rows, int64_t columns, float* to, int64_t to_row) {
  int64_t j = 0;
  if (rows == kLanes)
    for (; j + kLanes <= columns; j += kLanes) transpose_square(from + j, row, kLanes, kLanes, to + j * to_row, to_row);
  for (; j < columns; ++j)
    for (int64_t i = 0; i < rows; ++i) to[j * to_row + i] = from[i * row + j];
}

struct FloatPanels {
  using Element = float;
  struct Unit {
    Unit() {}
  };
  static constexpr int64_t kRows = ingot::kernels::cpu::INGOT_ISA::kBlockRows, kStep = 1;
  static constexpr int64_t kDepth = 256;                      // a panel of columns of it fills 32 KiB with AVX-512
  static constexpr int64_t kBlockRows = 10 * kRows;           // of a task, at most
  static constexpr int64_t kBlockBytes = int64_t{512} << 10;  // of a block's columns: half of a small L2
  static constexpr bool kCopiesLinesOfA = false;              // they stay
  static_assert(kPanel == 2 * kLanes);

  // What of it is not in L1 comes from L2 as fast as it is needed. Columns that are pages apart are of the same few sets of that, too.
  static bool stays(const Gemm& g) { return g.a_column == 1 || g.a_column % 1024 != 0; }
  static bool fits(int64_t) { return true; }

  // Column after column.
  static void pack_columns_of_a(const Gemm& g, const float* from, int64_t lines, Range along, float* to) {
    for (int64_t d = along.begin; d < along.end; ++d) {
      const float* const column = from + d * g.a_column;
      if (lines == kRows)
        for (int64_t i = 0; i < kRows; ++i) to[d * kRows + i] = column[i];
      else
        for (int64_t i = 0; i < lines; ++i) to[d * kRows + i] = column[i];
    }
  }

  // [k, panel], filled up with zeros.
  static void pack_lines_of_b(const Gemm& g, const float* from, int64_t lines, float* to) {
    if (lines < kPanel)
      for (int64_t i = 0; i < g.b_panel_size; ++i) to[i] = 0;
    for (int64_t first = 0; first < lines; first += kLanes)
      transpose_rows(from + first * g.b_column, g.b_column, smaller(kLanes, lines - first), g.k, to + first, kPanel);
  }
  static void pack_rows_of_b(const Gemm& g, const float* from, int64_t columns, Range along, float* to) {
    for (int64_t d = along.begin; d < along.end; ++d) {
      const auto line = load_two(from + d * g.b_row, columns);
      store(to + d * kPanel, line.low);
      store(to + d * kPanel + kLanes, line.high);
    }
  }

  static auto product(const Gemm& g, int64_t row, int64_t d, int64_t rows, int64_t depth, bool is_added, const float*) {
    const bool is_packed = g.a_panels > 0, by_columns = g.a_column != 1;
    const float* const a = is_packed ? static_cast<const float*>(g.packed_a) + row / kRows * g.a_panel_size + d * kRows
                                     : static_cast<const float*>(g.a) + row * g.a_row + d * g.a_column;
    const int64_t a_step = is_packed ? kRows : by_columns ? g.a_column : g.a_row;
    const auto block = by_columns ? (is_added ? block_for<Into::added, true>(rows, true) : block_for<Into::scaled, true>(rows, true))
                                  : (is_added ? block_for<Into::added, false>(rows, true) : block_for<Into::scaled, false>(rows, true));
    return [=](const float* b, float* c, int64_t c_row) { block(depth, a, a_step, b, c, c_row, 1); };
  }

  static void transpose(const float* from, int64_t row, int64_t columns, float* to) {
    for (int64_t first = 0; first < kPanel; first += kLanes) transpose_rows(from + first * row, row, kLanes, columns, to + first, row);
  }
};

}  // namespace

const GemmKernel float_gemm = GemmBlocks<FloatPanels>::kKernel;

}  // namespace ingot::kernels::cpu::INGOT_ISA
