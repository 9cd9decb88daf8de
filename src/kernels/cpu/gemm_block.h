// What GEMMs of all dtypes have in common; `Panels` says how operands are packed and multiplied (float_gemm.cpp, pair_gemm.cpp).
//
// Each task multiplies a block of rows by a block of columns whose panels stay in L2. Of them, one panel of rows is held in L1 for kDepth
// of its elements and meets panel after panel of columns, which stream from L2. Sums over more than kDepth pass through fp32 in between.
// Sums go over k in the same order whatever the number of threads, and whatever other rows there are.
#pragma once

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile.h"

namespace ingot::kernels::cpu::INGOT_ISA {

inline constexpr int64_t kGemmLayers = 4;                 // of kDepth each: what a block of columns keeps in L2 of longer ones
inline constexpr int64_t kGemmApart = 16;                 // sums between rows of them, so that they are not of one set of L1
inline constexpr int64_t kGemmChunk = 64;                 // rows of an operand that are packed together, for
inline constexpr int64_t kGemmPanels = 32;                // so many panels
inline constexpr int64_t kGemmSums = int64_t{128} << 10;  // of a task

// Two vectors of a row, of which `left` elements are there.
struct TwoVectors {
  Float low, high;
};

template <class T>
INGOT_INLINE TwoVectors load_two(const T* from, int64_t left) {
  if (left >= 2 * kLanes) return {load(from), load(from + kLanes)};
  if (left >= kLanes) return {load(from), load_part(from + kLanes, left - kLanes)};
  return {load_part(from, left), Float{}};
}

template <class T>
INGOT_INLINE void store_two(T* to, const TwoVectors& x, int64_t left) {
#if defined(__AVX512BF16__)
  if constexpr (sizeof(T) == sizeof(bf16)) {
    const auto rounded = _mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(x.high), reinterpret_cast<__m512>(x.low));
    _mm512_mask_storeu_epi16(to, left >= 2 * kLanes ? 0xffffffff : (1u << left) - 1, reinterpret_cast<__m512i>(rounded));
    return;
  }
#endif
  left >= kLanes ? store(to, x.low) : store_part(to, x.low, left);
  if (left >= 2 * kLanes) store(to + kLanes, x.high);
  else if (left > kLanes) store_part(to + kLanes, x.high, left - kLanes);
}

template <class Panels>
struct GemmBlocks {
  using Element = typename Panels::Element;
  static constexpr int64_t kRows = Panels::kRows, kColumns = 2 * kLanes;  // of a panel

  static void lay_out(Gemm& g, int64_t workers) {
    const int64_t depth = round_up(g.k, Panels::kStep);
    g.a_panel_size = kRows * depth, g.b_panel_size = kColumns * depth;
    const bool stays = Panels::stays(g);
    g.copies_a = !stays && g.a_column == 1;
    g.a_panels = stays || g.copies_a ? 0 : divided_up(g.m, kRows), g.b_panels = divided_up(g.n, kColumns);
    g.a_tasks = chunks(g) * divided_up(g.a_panels, kGemmPanels);
    g.b_tasks = g.b_column == 1 ? chunks(g) * divided_up(g.b_panels, kGemmPanels) : g.b_panels;
    const int64_t bytes = static_cast<int64_t>(sizeof(Element)) * smaller(depth, kGemmLayers * Panels::kDepth);  // of a column
    const int64_t fits_l2 = Panels::kBlockBytes / bytes, of_sums = kGemmSums / Panels::kBlockRows;
    const int64_t most = larger(kColumns, round_down(smaller(fits_l2, of_sums), kColumns));
    g.block_rows = Panels::kBlockRows;
    g.block_columns = round_up(divided_up(g.n, divided_up(g.n, most)), kColumns);
    const auto tasks = [&] { return divided_up(g.m, g.block_rows) * divided_up(g.n, g.block_columns); };
    while (workers > 1 && tasks() < 2 * workers && (g.block_rows > 2 * kRows || g.block_columns > 4 * kColumns)) {
      if (g.block_rows > 2 * kRows) g.block_rows = round_up(g.block_rows / 2, kRows);
      else g.block_columns = round_up(g.block_columns / 2, kColumns);
    }
    g.row_blocks = divided_up(g.m, g.block_rows);
    g.tasks = tasks();
    g.mirrored = divided_up(g.m, kColumns);
    g.scratch_floats = sums_of_block(g) + (g.copies_a ? kRows * Panels::kDepth * static_cast<int64_t>(sizeof(Element)) / 4 : 0);
  }

  static int64_t sums_of_block(const Gemm& g) { return g.block_rows * (g.block_columns + kGemmApart); }

  static int64_t divided_up(int64_t x, int64_t by) { return (x + by - 1) / by; }
  static int64_t chunks(const Gemm& g) { return divided_up(round_up(g.k, Panels::kStep), kGemmChunk); }
  static Range chunk(const Gemm& g, int64_t task) {
    const int64_t begin = task % chunks(g) * kGemmChunk;
    return {begin, smaller(begin + kGemmChunk, round_up(g.k, Panels::kStep))};
  }
  static Range panels(const Gemm& g, int64_t task, int64_t all) {
    const int64_t begin = task / chunks(g) * kGemmPanels;
    return {begin, smaller(begin + kGemmPanels, all)};
  }

  // A task packs a chunk of rows for some panels or, where lines lie by themselves, one panel: either way it reads what lies together.
  static void pack_a(const Gemm& g, int64_t task) {
    const auto* const from = static_cast<const Element*>(g.a);
    auto* const to = static_cast<Element*>(g.packed_a);
    const Range some = panels(g, task, g.a_panels);
    for (int64_t panel = some.begin; panel < some.end; ++panel)
      Panels::pack_columns_of_a(g, from + panel * kRows, smaller(kRows, g.m - panel * kRows), chunk(g, task), to + panel * g.a_panel_size);
  }

  static void pack_b(const Gemm& g, int64_t task) {
    const auto* const from = static_cast<const Element*>(g.b);
    auto* const to = static_cast<Element*>(g.packed_b);
    if (g.b_column != 1) {
      const int64_t first = task * kColumns;
      Panels::pack_lines_of_b(g, from + first * g.b_column, smaller(kColumns, g.n - first), to + task * g.b_panel_size);
      return;
    }
    const Range some = panels(g, task, g.b_panels);
    for (int64_t panel = some.begin; panel < some.end; ++panel)
      Panels::pack_rows_of_b(g, from + panel * kColumns, smaller(kColumns, g.n - panel * kColumns), chunk(g, task),
                             to + panel * g.b_panel_size);
  }

  // Columns [begin, columns) of a row of sums to the result.
  template <class T>
  static void put(const Gemm& g, const float* sums, int64_t row, int64_t column, int64_t begin, int64_t columns) {
    T* const to = static_cast<T*>(g.c) + row * g.c_row + column;
    const Element* const other = g.other == nullptr ? nullptr : static_cast<const Element*>(g.other) + row * g.other_row + column;
    for (int64_t j = begin; j < columns; j += kColumns) {
      TwoVectors x = {load(sums + j) * g.scale, load(sums + j + kLanes) * g.scale};
      if (other != nullptr) {
        const auto added = load_two(other + j, columns - j);
        x.low += g.other_scale * added.low, x.high += g.other_scale * added.high;
      }
      if (g.adds) {
        const auto before = load_two(to + j, columns - j);
        x.low += before.low, x.high += before.high;
      }
      store_two(to + j, x, columns - j);
    }
  }

  static void multiply(const Gemm& g, int64_t task, float* scratch) {
    const int64_t depth = round_up(g.k, Panels::kStep), pieces = (depth + Panels::kDepth - 1) / Panels::kDepth,
                  piece = round_up((depth + pieces - 1) / pieces, Panels::kStep);
    const int64_t column = task / g.row_blocks * g.block_columns, columns = smaller(g.block_columns, g.n - column);
    const int64_t first = task % g.row_blocks * g.block_rows, end = smaller(g.m, first + g.block_rows);
    // Not where it is added to what is there: that comes last, in every block.
    const bool is_direct =
        !g.is_bf16 && !g.adds && g.scale == 1 && g.other == nullptr && columns % kColumns == 0 && Panels::fits(end - first);
    float* const sums = is_direct ? static_cast<float*>(g.c) + first * g.c_row + column : scratch;
    const int64_t step = is_direct ? g.c_row : g.block_columns + kGemmApart;
    const auto first_of = [&](int64_t row) { return g.is_symmetric ? larger(0, round_down(row - column, kColumns)) : 0; };
    auto* const copy = reinterpret_cast<Element*>(scratch + sums_of_block(g));
    const typename Panels::Unit unit;
    for (int64_t layer = 0; layer < depth; layer += kGemmLayers * piece)
      for (int64_t row = first; row < end && first_of(row) < columns; row += kRows)
        for (int64_t d = layer; d < smaller(depth, layer + kGemmLayers * piece); d += piece) {
          const int64_t rows = smaller(kRows, end - row), length = smaller(piece, depth - d);
          if constexpr (Panels::kCopiesLinesOfA)
            if (g.copies_a) Panels::copy_lines_of_a(g, row, rows, {d, d + length}, copy);
          const auto product = Panels::product(g, row, d, rows, length, d > 0, copy);
          const Element* const b = static_cast<const Element*>(g.packed_b) + column / kColumns * g.b_panel_size + d * kColumns;
          for (int64_t j = first_of(row); j < columns; j += kColumns)
            product(b + j / kColumns * g.b_panel_size, sums + (row - first) * step + j, step);
        }
    if (is_direct) return;
    for (int64_t row = first; row < end; ++row) {
      const int64_t begin = first_of(round_down(row - first, kRows) + first);
      const float* const of_row = sums + (row - first) * step;
      g.is_bf16 ? put<bf16>(g, of_row, row, column, begin, columns) : put<float>(g, of_row, row, column, begin, columns);
    }
  }

  // Rows as many as a panel has columns: what multiply() leaves of them begins at a multiple of that.
  static void mirror(const Gemm& g, int64_t task) {
    auto* const c = static_cast<Element*>(g.c);
    const int64_t row = task * kColumns, rows = smaller(kColumns, g.m - row);
    for (int64_t column = 0; column < row; column += kColumns)
      Panels::transpose(c + column * g.c_row + row, g.c_row, rows, c + row * g.c_row + column);
  }

  static constexpr GemmKernel kKernel = {.lay_out = lay_out, .pack_a = pack_a, .pack_b = pack_b, .multiply = multiply, .mirror = mirror};
};

}  // namespace ingot::kernels::cpu::INGOT_ISA
