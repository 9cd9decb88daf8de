// Matmuls in bf16 that are summed in fp32, 32 x 32 elements at a time, by the unit that the including source is compiled for:
// AMX (16 rows of 32 elements to a tile register; 16 x 16 sums of 32 products in 16 cycles), or the pairs of AVX512_BF16 (16 sums of 2
// products, twice a cycle: an eighth of that). Both round nothing but the results' own sums. What may be included: see isa.h.
//
// The left operand lies by rows. The right one lies in pairs of rows: row r of its pairs holds elements (2 r, c) and (2 r + 1, c) side by
// side. Limit of an AMX product of depth 64: 8 operations of 16 cycles; its tiles come from L1 meanwhile, not from L2.
#pragma once

#include "kernels/cpu/simd.h"
#include "kernels/cpu/tile.h"

namespace ingot::kernels::cpu::INGOT_ISA {

inline constexpr int64_t kTile = 32;

#if defined(__AMX_BF16__)

// The tile registers of this thread, while it lives. Others (a library's GEMM) shape them anew.
class TileRegisters {
 public:
  TileRegisters() {
    struct alignas(64) {
      uint8_t palette = 1, first_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } shape;
    static_assert(sizeof shape == 64);
    asm volatile("" : : "r"(&shape) : "memory");  // GCC's intrinsic says that 8 bytes are read
    _tile_loadconfig(&shape);
  }
  ~TileRegisters() { _tile_release(); }
  TileRegisters(const TileRegisters&) = delete;
  TileRegisters& operator=(const TileRegisters&) = delete;
};

// c [32, 32] = a [32, depth] b [depth, 32], or added to it; depth a multiple of 32. Strides count elements, b's from pair to pair; a_next
// to the next 32 columns of a.
template <Into kInto>
INGOT_INLINE void product_of_tiles(int64_t depth, const bf16* a, int64_t a_stride, const bf16* b, int64_t b_stride, float* c,
                                   int64_t c_stride, int64_t a_next = kTile) {
  float* const low = c + 16 * c_stride;
  const int64_t a_bytes = 2 * a_stride, b_bytes = 2 * b_stride, c_bytes = 4 * c_stride;
  asm volatile("" : : : "memory");  // GCC's loads do not say that they read memory
  if constexpr (kInto == Into::added) {
    _tile_loadd(0, c, c_bytes);
    _tile_loadd(1, c + 16, c_bytes);
    _tile_loadd(2, low, c_bytes);
    _tile_loadd(3, low + 16, c_bytes);
  } else {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  for (; depth > 0; depth -= kTile, a += a_next, b += kTile / 2 * b_stride) {
    _tile_loadd(4, a, a_bytes);
    _tile_loadd(6, b, b_bytes);
    _tile_loadd(7, b + 32, b_bytes);
    _tile_loadd(5, a + 16 * a_stride, a_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, c, c_bytes);
  _tile_stored(1, c + 16, c_bytes);
  _tile_stored(2, low, c_bytes);
  _tile_stored(3, low + 16, c_bytes);
  asm volatile("" : : : "memory");
}

#else

struct TileRegisters {
  TileRegisters() {}
};

template <Into kInto>
INGOT_INLINE void product_of_tiles(int64_t depth, const bf16* a, int64_t a_stride, const bf16* b, int64_t b_stride, float* c,
                                   int64_t c_stride, int64_t a_next = kTile) {
  constexpr int kRows = 8;
  for (int64_t row = 0; row < kTile; row += kRows) {
    __m512 sum[kRows][2];
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < 2; ++j)
        sum[i][j] = kInto == Into::added ? _mm512_loadu_ps(c + (row + i) * c_stride + 16 * j) : _mm512_setzero_ps();
    for (int64_t d = 0; d < depth; d += 2) {
      const bf16* const pairs = b + d / 2 * b_stride;
      const auto left = reinterpret_cast<__m512bh>(_mm512_loadu_si512(pairs)),
                 right = reinterpret_cast<__m512bh>(_mm512_loadu_si512(pairs + 32));
#pragma GCC unroll 8
      for (int i = 0; i < kRows; ++i) {
        int32_t pair;
        __builtin_memcpy(&pair, a + (row + i) * a_stride + d / kTile * a_next + d % kTile, sizeof pair);
        const auto both = reinterpret_cast<__m512bh>(_mm512_set1_epi32(pair));
        sum[i][0] = _mm512_dpbf16_ps(sum[i][0], left, both);
        sum[i][1] = _mm512_dpbf16_ps(sum[i][1], right, both);
      }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < 2; ++j) _mm512_storeu_ps(c + (row + i) * c_stride + 16 * j, sum[i][j]);
  }
}

#endif

// Elements of a row, of which `count` are left; zeros behind them.
INGOT_INLINE __m512i load_32(const bf16* from, int64_t count) {
  return count >= 32 ? _mm512_loadu_si512(from) : count <= 0 ? _mm512_setzero_si512() : _mm512_maskz_loadu_epi16((1u << count) - 1, from);
}

// Of two rows 16 elements each, in pairs.
INGOT_INLINE __m512i in_pairs(__m256i first, __m256i second) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32(_mm512_cvtepu16_epi32(second), 16));
}

// The same of floats, rounded to nearest with ties away from zero. Not for those that are no number or beyond the largest of bf16.
INGOT_INLINE __m512i in_pairs(Float first, Float second) {
  const __m512i half = _mm512_set1_epi32(0x8000);
  const __m512i low = _mm512_srli_epi32(_mm512_add_epi32(reinterpret_cast<__m512i>(first), half), 16);
  return _mm512_mask_blend_epi16(0xaaaaaaaa, low, _mm512_add_epi32(reinterpret_cast<__m512i>(second), half));
}

// 16 x 16 pairs of elements.
INGOT_INLINE void transpose(__m512i (&x)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4)
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_unpacklo_epi64(t[i + j], t[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_unpackhi_epi64(t[i + j], t[i + j + 2]);
    }
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 2; ++j) {
      t[8 * j + i] = _mm512_shuffle_i32x4(x[8 * j + i], x[8 * j + i + 4], 0x88);
      t[8 * j + i + 4] = _mm512_shuffle_i32x4(x[8 * j + i], x[8 * j + i + 4], 0xdd);
    }
  for (int i = 0; i < 8; ++i) {
    x[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    x[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
  }
}

// Rows d and d + 1 of a matrix of k rows, whose first `columns` (32 at most) elements are there, in pairs.
struct PairOfRows {
  __m512i low, high;
  PairOfRows(const bf16* from, int64_t stride, int64_t columns, int64_t k, int64_t d) {
    const __m512i first = d < k ? load_32(from + d * stride, columns) : _mm512_setzero_si512();
    const __m512i second = d + 1 < k ? load_32(from + (d + 1) * stride, columns) : _mm512_setzero_si512();
    low = in_pairs(_mm512_castsi512_si256(first), _mm512_castsi512_si256(second));
    high = in_pairs(_mm512_extracti64x4_epi64(first, 1), _mm512_extracti64x4_epi64(second, 1));
  }
  void store(bf16* to) const {
    _mm512_storeu_si512(to, low);
    _mm512_storeu_si512(to + kTile, high);
  }
};

// Rows [d, d + 32) of the same, transposed: row i are the elements of column i.
struct TransposedTile {
  __m512i rows[kTile];
  TransposedTile(const bf16* from, int64_t stride, int64_t columns, int64_t k, int64_t d) {
    __m512i low[16], high[16];
    for (int64_t i = 0; i < 16; ++i) {
      const PairOfRows pair(from, stride, columns, k, d + 2 * i);
      low[i] = pair.low, high[i] = pair.high;
    }
    transpose(low);
    transpose(high);
    for (int64_t i = 0; i < 16; ++i) rows[i] = low[i], rows[16 + i] = high[i];
  }
  void store(bf16* to, int64_t stride, int64_t count = kTile) const {
    for (int64_t i = 0; i < count; ++i) _mm512_storeu_si512(to + i * stride, rows[i]);
  }
};

// 32 elements of each of 16 rows, of which `count` rows and `left` elements are there, in pairs and transposed: [16 pairs, 16].
INGOT_INLINE void store_pairs_of_columns(const bf16* from, int64_t stride, int64_t count, int64_t left, bf16* to, int64_t to_stride) {
  __m512i x[16];
  for (int64_t i = 0; i < 16; ++i) x[i] = i < count ? load_32(from + i * stride, left) : _mm512_setzero_si512();
  transpose(x);
  for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * to_stride, x[i]);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
