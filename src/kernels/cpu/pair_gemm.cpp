// GEMMs of bf16 by the units that add up pairs (pair_tiles.h). Limit: AMX, 16 cycles for 16 x 16 x 32 products, whose panels of columns
// come from L2: 2 KiB in 64 cycles; AVX512_BF16, twice the rate of fp32.
#include "kernels/cpu/gemm_block.h"
#include "kernels/cpu/pair_tiles.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

struct PairPanels {
  using Element = bf16;
  using Unit = TileRegisters;
  static constexpr int64_t kRows = kTile, kStep = kTile;
  static constexpr int64_t kDepth = 512;            // a panel of it fills 32 KiB
  static constexpr int64_t kBlockRows = 4 * kTile;  // of a task, at most
#if defined(__AMX_BF16__)
  static constexpr int64_t kBlockBytes = int64_t{1} << 20;  // of a block's columns: half of L2
#else
  static constexpr int64_t kBlockBytes = int64_t{512} << 10;
#endif
  static constexpr bool kCopiesLinesOfA = true;
  static_assert(kTile == 2 * kLanes && kGemmChunk % kTile == 0);

  // If 32 rows of kDepth elements find place in L1's 64 sets of lines of 64 bytes: at 8 distances or more.
  static bool stays(const Gemm& g) {
    return g.a_column == 1 && g.m % kTile == 0 && g.k % kTile == 0 && g.a_row % 32 == 0 && g.a_row / 32 % 16 != 0;
  }
  static bool fits(int64_t rows) { return rows % kTile == 0; }

  // To tiles, [k / 32, 32 lines, 32], filled up with zeros.
  static void copy_lines_of_a(const Gemm& g, int64_t row, int64_t lines, Range along, bf16* to) {
    const bf16* const from = static_cast<const bf16*>(g.a) + row * g.a_row;
    for (int64_t i = 0; i < kTile; ++i)
      for (int64_t d = along.begin; d < along.end; d += kTile)
        _mm512_storeu_si512(to + (d - along.begin + i) * kTile,
                            i < lines ? load_32(from + i * g.a_row + d, g.k - d) : _mm512_setzero_si512());
  }
  static void pack_columns_of_a(const Gemm& g, const bf16* from, int64_t lines, Range along, bf16* to) {
    for (int64_t d = along.begin; d < along.end; d += kTile) TransposedTile(from, g.a_column, lines, g.k, d).store(to + d * kTile, kTile);
  }

  // To pairs along k: [k / 2, 32] pairs.
  static void pack_lines_of_b(const Gemm& g, const bf16* from, int64_t lines, bf16* to) {
    for (int64_t d = 0; d < g.k; d += kTile)
      for (int64_t first = 0; first < kTile; first += 16)
        store_pairs_of_columns(from + first * g.b_column + d, g.b_column, lines - first, g.k - d, to + d * kTile + 2 * first, 2 * kTile);
  }
  static void pack_rows_of_b(const Gemm& g, const bf16* from, int64_t columns, Range along, bf16* to) {
    for (int64_t d = along.begin; d < along.end; d += 2) PairOfRows(from, g.b_row, columns, g.k, d).store(to + d * kTile);
  }

  static auto product(const Gemm& g, int64_t row, int64_t d, int64_t, int64_t depth, bool is_added, const bf16* copy) {
    const bool is_packed = g.a_panels > 0 || g.copies_a;
    const bf16* const a = g.copies_a       ? copy
                          : g.a_panels > 0 ? static_cast<const bf16*>(g.packed_a) + row / kTile * g.a_panel_size + d * kTile
                                           : static_cast<const bf16*>(g.a) + row * g.a_row + d;
    const int64_t a_row = is_packed ? kTile : g.a_row, a_next = is_packed ? kTile * kTile : kTile;
    return [=](const bf16* b, float* c, int64_t c_row) {
      is_added ? product_of_tiles<Into::added>(depth, a, a_row, b, 2 * kTile, c, c_row, a_next)
               : product_of_tiles<Into::scaled>(depth, a, a_row, b, 2 * kTile, c, c_row, a_next);
    };
  }

  static void transpose(const bf16* from, int64_t row, int64_t columns, bf16* to) {
    TransposedTile(from, row, columns, kTile, 0).store(to, row, columns);
  }
};

}  // namespace

const GemmKernel pair_gemm = GemmBlocks<PairPanels>::kKernel;

}  // namespace ingot::kernels::cpu::INGOT_ISA
