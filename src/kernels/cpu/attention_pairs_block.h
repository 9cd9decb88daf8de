// Pieces that the passes of the bf16 attention kernel share. Scores are made transposed, [keys, queries]: each query is a lane, so that its
// maximum, its sum, its mask and the gradient's terms are whole vectors, weights become an operand of the next product where they stand,
// and nothing is added up across lanes. Blocks of 64 keys by 64 queries, in tiles of 32 x 32 that are left out where the mask hides all of
// one. For the sources that are compiled once per unit of products (isa.h, PairUnit).
#pragma once

#include "kernels/cpu/attention_block.h"
#include "kernels/cpu/pair_tiles.h"

namespace ingot::kernels::cpu {
namespace avx512 {
void attention_reduce(const AttentionProblem&, int64_t task);
void attention_decode(const AttentionProblem&, int64_t task, float* scratch);
int64_t attention_decode_scratch(const AttentionProblem&);
void attention_decode_join(const AttentionProblem&, int64_t task);
}  // namespace avx512

namespace INGOT_ISA {

inline constexpr int64_t kPairKeys = 64, kPairQueries = 64;  // of a block: what a block of queries needs fits into L1 with heads of 64
inline constexpr int64_t kPairs = 2;                         // elements of a pair

// Keys and values of a block in bf16, rows behind k_len and channels behind head_dim or value_dim 0.
struct PackedPairs {
  bf16* keys;                  // [kPairKeys, width]
  bf16* values_by_dim;         // forward: [value_width, kPairKeys]
  bf16 *keys_by_dim, *values;  // backward: [width, kPairKeys]; [kPairKeys, value_width]
  PackedPairs(const AttentionProblem& p, int64_t tile) {
    const int64_t size = kPairKeys * p.width(), value_size = kPairKeys * p.value_width();
    bf16* const packed = reinterpret_cast<bf16*>(p.packed);
    keys = packed + tile * size;
    values = values_by_dim = packed + p.key_tiles() * size + tile * value_size;
    keys_by_dim = packed + p.key_tiles() * (size + value_size) + tile * size;
  }
};

// 32 queries, as the lanes of two vectors. Those that are not there see no key.
struct Strip {
  int32_t begin[kTile], end[kTile];   // of the keys that each sees
  int64_t first_key, last_key;        // all that some of them sees: [first_key, last_key)
  int64_t first_of_all, last_of_all;  // all that each of them sees
  Strip(const AttentionProblem& p, int64_t batch, int64_t first, int64_t count) {
    for (int64_t i = 0; i < kTile; ++i) {
      begin[i] = i < count ? static_cast<int32_t>(p.first_key(batch, first + i)) : 0;
      end[i] = i < count ? static_cast<int32_t>(p.last_key(batch, first + i) + 1) : 0;
    }
    first_key = begin[0], last_key = count > 0 ? end[count - 1] : 0;
    if (first_key >= last_key) first_key = last_key = 0;  // keys that nobody sees are not packed
    first_of_all = count < kTile ? p.k_len : begin[count - 1], last_of_all = count < kTile ? 0 : end[0];
  }
  // The keys of [from, until), multiples of kTile, in tiles of which some query sees a key.
  Range tiles_in(int64_t from, int64_t until) const {
    return {larger(from, round_down(first_key, kTile)), smaller(until, round_up(last_key, kTile))};
  }
  bool hides_some_of(Range keys) const { return keys.begin < first_of_all || keys.end > last_of_all; }
};

// Rows of channels as the right operand of a product over channels, [width / 2 pairs, kPairQueries].
INGOT_INLINE void pack_pairs_of_channels(const bf16* from, int64_t step, int64_t count, int64_t channels, int64_t width, bf16* to) {
  for (int64_t row = 0; row < kPairQueries; row += 16)
    for (int64_t d = 0; d < width; d += kTile)
      store_pairs_of_columns(from + row * step + d, step, count - row, channels - d, to + (d / 2 * kPairQueries + row) * kPairs,
                             kPairQueries * kPairs);
}

// The same as the right operand of a product over rows, [kPairQueries / 2 pairs, width].
INGOT_INLINE void pack_pairs_of_rows(const bf16* from, int64_t step, int64_t count, int64_t channels, int64_t width, bf16* to) {
  for (int64_t row = 0; row < kPairQueries; row += 2)
    for (int64_t d = 0; d < width; d += kTile)
      PairOfRows(from + d, step, channels - d, count, row).store(to + (row / 2 * width + d) * kPairs);
}

// Sums of 32 queries by channels, [width, step], times a factor of each query, as rows of bf16.
INGOT_INLINE void store_rows(const float* from, int64_t step, int64_t channels, const float* factors, int64_t count, bf16* to,
                             int64_t to_step) {
  for (int64_t group = 0; group < kTile; group += 16)
    for (int64_t d = 0; d < channels; d += kTile) {
      const Float factor = load(factors + group);
      __m512i x[16];
      for (int64_t i = 0; i < 16; ++i) {
        const float* const pair = from + (d + 2 * i) * step + group;
        x[i] = in_pairs(load(pair) * factor, load(pair + step) * factor);
      }
      transpose(x);
      const int64_t left = channels - d;
      const __mmask32 there = left >= kTile ? 0xffffffff : (1u << left) - 1;
      for (int64_t i = 0; i < 16 && group + i < count; ++i) _mm512_mask_storeu_epi16(to + (group + i) * to_step + d, there, x[i]);
    }
}

// 2^x, relative error 7.5e-5 (minimax polynomial of degree 3 on [0, 1]), where bf16 rounds by up to 2e-3; 0 for -infinity. x <= 127.
INGOT_INLINE Float exp2_for_bf16(Float x) {
  const __m512 whole = reinterpret_cast<__m512>(x);
  const Float f = reinterpret_cast<Float>(_mm512_reduce_ps(whole, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  Float y = f * 0.0780245227f + 0.226067155f;
  y = y * f + 0.69583354f;
  y = y * f + 0.999925219f;
  return reinterpret_cast<Float>(_mm512_scalef_ps(reinterpret_cast<__m512>(y), whole));
}

}  // namespace INGOT_ISA
}  // namespace ingot::kernels::cpu
