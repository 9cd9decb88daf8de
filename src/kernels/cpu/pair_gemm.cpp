// Each task multiplies a block of rows by a block of columns whose panels stay in L2. Of them, one panel of rows is held in L1 for kDepth
// of its elements and meets panel after panel of columns, which stream from L2: 2 KiB in 64 cycles of AMX. Sums over more than kDepth pass
// through fp32 in between. Limit: AMX, 16 cycles for 16 x 16 x 32 products. Sums go over k in the same order whatever the number of
// threads.
#include "kernels/cpu/pair_gemm.h"

#include "kernels/cpu/pair_tiles.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kDepth = 512;                    // of products between two sums in memory: a panel of it fills 32 KiB
constexpr int64_t kLayers = 4;                     // of kDepth each: what a block of columns keeps in L2 of longer ones
constexpr int64_t kBlockRows = 4 * kTile;          // of a task
constexpr int64_t kApart = 16;                     // sums between rows of them, so that they are not of one set of L1
constexpr int64_t kChunk = 2 * kTile;              // rows of an operand that are packed together
constexpr int64_t kBlockBytes = int64_t{1} << 20;  // of a block's columns: half of L2

// Panel of 32 lines (rows of a or columns of b) whose elements along k lie together: in tiles, [k / 32, 32 lines, 32].
void copy_lines(const bf16* from, int64_t line, int64_t lines, int64_t k, bf16* to) {
  for (int64_t i = 0; i < kTile; ++i)
    for (int64_t d = 0; d < k; d += kTile)
      _mm512_storeu_si512(to + (d + i) * kTile, i < lines ? load_32(from + i * line + d, k - d) : _mm512_setzero_si512());
}

// The same to pairs along k: [k / 2, 32] pairs.
void pack_pairs_of_lines(const bf16* from, int64_t line, int64_t lines, int64_t k, bf16* to) {
  for (int64_t d = 0; d < k; d += kTile)
    for (int64_t first = 0; first < kTile; first += 16)
      store_pairs_of_columns(from + first * line + d, line, lines - first, k - d, to + d * kTile + 2 * first, 2 * kTile);
}

// Where lines lie by themselves a task packs one panel, else kChunk rows for all panels: either way it reads what lies together.
Range chunk(const PairGemm& g, int64_t task) { return {task * kChunk, smaller((task + 1) * kChunk, g.panel_size / kTile)}; }

void pack_a(const PairGemm& g, int64_t task) {
  if (g.a_column == 1) {
    const int64_t first = task * kTile;
    copy_lines(g.a + first * g.a_row, g.a_row, smaller(kTile, g.m - first), g.k, g.packed_a + task * g.panel_size);
    return;
  }
  for (int64_t first = 0; first < g.m; first += kTile)
    for (int64_t d = chunk(g, task).begin; d < chunk(g, task).end; d += kTile)
      TransposedTile(g.a + first, g.a_column, g.m - first, g.k, d).store(g.packed_a + first / kTile * g.panel_size + d * kTile, kTile);
}

void pack_b(const PairGemm& g, int64_t task) {
  if (g.b_column != 1) {
    const int64_t first = task * kTile;
    pack_pairs_of_lines(g.b + first * g.b_column, g.b_column, smaller(kTile, g.n - first), g.k, g.packed_b + task * g.panel_size);
    return;
  }
  for (int64_t first = 0; first < g.n; first += kTile)
    for (int64_t d = chunk(g, task).begin; d < chunk(g, task).end; d += 2)
      PairOfRows(g.b + first, g.b_row, g.n - first, g.k, d).store(g.packed_b + first / kTile * g.panel_size + d * kTile);
}

// Whether 32 rows of kDepth elements, `stride` apart, find place in L1's 64 sets of lines of 64 bytes: at 8 distances or more.
bool stay_in_cache(int64_t stride) { return stride % 32 == 0 && stride / 32 % 16 != 0; }

void lay_out(PairGemm& g) {
  const int64_t depth = round_up(g.k, kTile);
  const bool stays = g.a_column == 1 && g.m % kTile == 0 && g.k % kTile == 0 && stay_in_cache(g.a_row);
  g.panel_size = kTile * depth;
  const int64_t chunks = (depth + kChunk - 1) / kChunk;
  g.a_panels = stays ? 0 : (g.m + kTile - 1) / kTile, g.b_panels = (g.n + kTile - 1) / kTile;
  g.a_tasks = g.a_column == 1 ? g.a_panels : chunks, g.b_tasks = g.b_column == 1 ? chunks : g.b_panels;
  const int64_t most = larger(kTile, round_down(kBlockBytes / (2 * smaller(depth, kLayers * kDepth)), kTile)),
                blocks = (g.n + most - 1) / most;
  g.block_columns = round_up((g.n + blocks - 1) / blocks, kTile);
  g.row_blocks = (g.m + kBlockRows - 1) / kBlockRows;
  g.tasks = g.row_blocks * ((g.n + g.block_columns - 1) / g.block_columns);
  g.scratch_floats = kBlockRows * (g.block_columns + kApart);
}

INGOT_INLINE Float upcast(__m256i x) { return reinterpret_cast<Float>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }

// 32 elements of a row in bf16, of which `left` are there.
struct Upcast {
  Float low, high;
  Upcast(const bf16* from, int64_t left) {
    const __m512i x = load_32(from, left);
    low = upcast(_mm512_castsi512_si256(x)), high = upcast(_mm512_extracti64x4_epi64(x, 1));
  }
};

// 32 rows of sums to the result: as many columns as there are, those of [begin, columns).
void put(const PairGemm& g, const float* sums, int64_t row, int64_t column, int64_t begin, int64_t columns) {
  const int64_t rows = smaller(kTile, g.m - row);
  for (int64_t i = 0; i < rows; ++i, sums += g.block_columns + kApart) {
    if (g.is_bf16) {
      bf16* const to = static_cast<bf16*>(g.c) + (row + i) * g.c_row + column;
      const bf16* const other = g.other == nullptr ? nullptr : g.other + (row + i) * g.other_row + column;
      for (int64_t j = begin; j < columns; j += kTile) {
        const int64_t left = columns - j;
        Float low = load(sums + j) * g.scale, high = load(sums + j + 16) * g.scale;
        if (other != nullptr) {
          const Upcast x(other + j, left);
          low += g.other_scale * x.low, high += g.other_scale * x.high;
        }
        if (g.adds) {
          const Upcast before(to + j, left);
          low += before.low, high += before.high;
        }
        const auto rounded = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(reinterpret_cast<__m512>(high), reinterpret_cast<__m512>(low)));
        _mm512_mask_storeu_epi16(to + j, left >= kTile ? 0xffffffff : (1u << left) - 1, rounded);
      }
    } else {
      float* const to = static_cast<float*>(g.c) + (row + i) * g.c_row + column;
      for (int64_t j = begin; j < columns; j += 16) {
        const __mmask16 there = columns - j >= 16 ? 0xffff : (1u << (columns - j)) - 1;
        const __m512 sum = reinterpret_cast<__m512>(load(sums + j) * g.scale);
        _mm512_mask_storeu_ps(to + j, there, g.adds ? _mm512_add_ps(_mm512_maskz_loadu_ps(there, to + j), sum) : sum);
      }
    }
  }
}

void mirror(const PairGemm& g, int64_t panel) {
  const int64_t row = panel * kTile, rows = smaller(kTile, g.m - row);
  bf16* const c = static_cast<bf16*>(g.c);
  for (int64_t column = 0; column < row; column += kTile)
    TransposedTile(c + row, g.c_row, rows, column + kTile, column).store(c + row * g.c_row + column, g.c_row, rows);
}

void multiply(const PairGemm& g, int64_t task, float* scratch) {
  const int64_t depth = g.panel_size / kTile, pieces = (depth + kDepth - 1) / kDepth,
                piece = round_up((depth + pieces - 1) / pieces, kTile);
  const int64_t column = task / g.row_blocks * g.block_columns, columns = smaller(g.block_columns, g.n - column);
  const int64_t first = task % g.row_blocks * kBlockRows, end = smaller(g.m, first + kBlockRows);
  const bool is_direct = !g.is_bf16 && g.scale == 1 && columns % kTile == 0 && (end - first) % kTile == 0;
  float* const sums = is_direct ? static_cast<float*>(g.c) + first * g.c_row + column : scratch;
  const int64_t step = is_direct ? g.c_row : g.block_columns + kApart;
  const int64_t a_row = g.a_panels == 0 ? g.a_row : kTile, a_next = g.a_panels == 0 ? kTile : kTile * kTile;
  const auto first_of = [&](int64_t row) { return g.is_symmetric ? larger(0, row - column) : 0; };
  const TileRegisters tiles_of_thread;
  for (int64_t layer = 0; layer < depth; layer += kLayers * piece)
    for (int64_t row = first; row < end; row += kTile) {
      const bf16* const a = g.a_panels == 0 ? g.a + row * g.a_row : g.packed_a + row / kTile * g.panel_size;
      for (int64_t d = layer; d < smaller(depth, layer + kLayers * piece); d += piece) {
        const auto product = d > 0 || (is_direct && g.adds) ? &product_of_tiles<Into::added> : &product_of_tiles<Into::scaled>;
        const bf16* b = g.packed_b + column / kTile * g.panel_size + d * kTile;
        for (int64_t j = first_of(row); j < columns; j += kTile)
          product(smaller(piece, depth - d), a + d / kTile * a_next, a_row, b + j / kTile * g.panel_size, 2 * kTile,
                  sums + (row - first) * step + j, step, a_next);
      }
    }
  if (!is_direct)
    for (int64_t row = first; row < end; row += kTile) put(g, sums + (row - first) * step, row, column, first_of(row), columns);
}

}  // namespace

const PairGemmKernel pair_gemm = {.lay_out = lay_out, .pack_a = pack_a, .pack_b = pack_b, .multiply = multiply, .mirror = mirror};

}  // namespace ingot::kernels::cpu::INGOT_ISA
