// A matrix times a few rows. Blocks of outputs by rows of x are summed up in registers, as many as there are; of a quantized matrix the
// products of integers are summed up in 32 bits over each group, then scaled.
#include "kernels/cpu/rows_few_products.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kAhead = 4096;              // bytes of weights that are prefetched for one row
constexpr int kBlock = kLanes >= 16 ? 4 : 2;  // rows of x from which on outputs go in blocks

INGOT_INLINE const float* row_of(const FewProductsProblem& p, int64_t row) { return p.x + (p.x_rows ? p.x_rows[row] : row) * p.x_stride; }

// Lanes of four vectors added up: one number for each. The order of additions is sum_of_lanes'.
INGOT_INLINE void sums_of_lanes(const Float (&x)[4], float* sums) {
#if INGOT_LANES == 16
  // Each step halves the lanes that belong to a vector: of two vectors, the sums of halves lie side by side.
  constexpr Int kLow = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23}, kHigh = kLow + 8;
  constexpr Int kLow4 = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27}, kHigh4 = kLow4 + 4;
  const Float ab = __builtin_shuffle(x[0], x[1], kLow) + __builtin_shuffle(x[0], x[1], kHigh);
  const Float cd = __builtin_shuffle(x[2], x[3], kLow) + __builtin_shuffle(x[2], x[3], kHigh);
  Float all = __builtin_shuffle(ab, cd, kLow4) + __builtin_shuffle(ab, cd, kHigh4);  // 4 lanes each
  all += __builtin_shuffle(all, lane_index() ^ 2);
  all += __builtin_shuffle(all, lane_index() ^ 1);
  for (int i = 0; i < 4; ++i) sums[i] = all[4 * i];
#else
  for (int i = 0; i < 4; ++i) sums[i] = sum_of_lanes(x[i])[0];
#endif
}

// Rows of x take turns with the same weights. Each turn prefetches its share of the weights that follow, so that memory is read all the
// time and not in the first turn alone.
struct Turn {
  int64_t index, count;
};

// Rows in blocks that fit into half of a second cache of 512 KiB, so that every output's weights are read from memory once for each.
template <class Body>
INGOT_INLINE void for_row_blocks(int64_t rows, int64_t row_bytes, const Body& body) {
  const int64_t most = larger(32, round_down((int64_t{256} << 10) / larger(row_bytes, 1), 4));
  for (int64_t first = 0; first < rows; first += most) body(first, smaller(rows, first + most));
}

// How formats without scales are multiplied: rows of weights of type Weight, rows of x, and vectors of both, whose products go to a sum.
template <class W>
struct Singles {
  using Weight = W;
  static constexpr int64_t kStep = kLanes, kXBytes = 4;
  static constexpr int kMostRows = kLanes >= 16 ? 6 : 2;  // whose sums with 4 outputs fit into registers
  INGOT_INLINE static const float* row(const FewProductsProblem& p, int64_t row) { return row_of(p, row); }
  INGOT_INLINE static Float weights(const W* from) { return load(from); }
  INGOT_INLINE static Float weights(const W* from, int64_t count) { return load_part(from, count); }
  INGOT_INLINE static Float in(const float* from) { return load(from); }
  INGOT_INLINE static Float in(const float* from, int64_t count) { return load_part(from, count); }
  INGOT_INLINE static Float add(Float sum, Float weights, Float in) { return fused(weights, in, sum); }
};

#if defined(__AVX512BW__) && INGOT_LANES == 16
// bf16 by bf16, of which products are added up in pairs in fp32: an operation that this source is not compiled for.
struct Pairs {
  using Weight = int16_t;
  static constexpr int64_t kStep = 2 * kLanes, kXBytes = 2;
  static constexpr int kMostRows = 4;  // with 6 rows of x come too slowly
  INGOT_INLINE static const int16_t* row(const FewProductsProblem& p, int64_t row) { return p.x16 + row * paired_inputs(p.inputs); }
  INGOT_INLINE static __m512i weights(const int16_t* from) { return _mm512_loadu_si512(from); }
  INGOT_INLINE static __m512i weights(const int16_t* from, int64_t count) {
    return _mm512_maskz_loadu_epi16(static_cast<__mmask32>((uint64_t{1} << count) - 1), from);
  }
  INGOT_INLINE static __m512i in(const int16_t* from) { return _mm512_loadu_si512(from); }
  INGOT_INLINE static __m512i in(const int16_t* from, int64_t) { return in(from); }  // zeros lie behind a row
  INGOT_INLINE static Float add(Float sum, __m512i weights, __m512i in) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(in));
    return sum;
  }
};
#endif

// `kOut` outputs (1 or 4; only `outputs` of them are there) of `kRows` rows of x.
template <class Products, int kOut, int kRows>
INGOT_INLINE void block(const FewProductsProblem& p, int64_t output, int64_t outputs, int64_t row, Turn turn) {
  using Weight = typename Products::Weight;
  constexpr int64_t kBytes = sizeof(Weight);
  const Weight* w[kOut];
  decltype(Products::row(p, 0)) x[kRows];
  for (int o = 0; o < kOut; ++o) w[o] = static_cast<const Weight*>(p.weights) + (output + smaller(o, outputs - 1)) * p.inputs;
  for (int r = 0; r < kRows; ++r) x[r] = Products::row(p, row + r);
  Float sum[kRows][kOut] = {};
  const int64_t whole = round_down(p.inputs, Products::kStep);
  for (int64_t i = 0; i < whole; i += Products::kStep) {
    decltype(Products::weights(w[0])) weights[kOut];
    if (i * kBytes % 64 == 0) {
      if (kOut == 1) __builtin_prefetch(w[0] + i + kAhead / kBytes);
      else
        for (int64_t o = turn.index; o < kOut; o += turn.count) __builtin_prefetch(w[0] + i + (3 * kOut + o) * p.inputs, 0, 2);
    }
#pragma GCC unroll 4
    for (int o = 0; o < kOut; ++o) weights[o] = Products::weights(w[o] + i);
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const auto in = Products::in(x[r] + i);
#pragma GCC unroll 4
      for (int o = 0; o < kOut; ++o) sum[r][o] = Products::add(sum[r][o], weights[o], in);
    }
  }
  if (const int64_t left = p.inputs - whole; left > 0)
#pragma GCC unroll 6
    for (int r = 0; r < kRows; ++r) {
      const auto in = Products::in(x[r] + whole, left);
#pragma GCC unroll 4
      for (int o = 0; o < kOut; ++o) sum[r][o] = Products::add(sum[r][o], Products::weights(w[o] + whole, left), in);
    }
  for (int r = 0; r < kRows; ++r) {
    float sums[kOut];
    if constexpr (kOut == 1) sums[0] = sum_of_lanes(sum[r][0])[0];
    else
      for (int o = 0; o < kOut; o += 4) {
        const Float four[4] = {sum[r][o], sum[r][o + 1], sum[r][o + 2], sum[r][o + 3]};
        sums_of_lanes(four, sums + o);
      }
    float* out = p.out + (row + r) * p.out_stride + output;
    for (int64_t o = 0; o < smaller(kOut, outputs); ++o) out[o] = sums[o] + (p.bias ? p.bias[output + o] : 0.0f);
  }
}

// `rows` rows, at most Products::kMostRows.
template <class Products, int kOut>
INGOT_INLINE void block_of(const FewProductsProblem& p, int64_t output, int64_t outputs, int64_t row, int64_t rows, Turn turn) {
  static_assert(Products::kMostRows <= 6);
  constexpr auto there = [](int r) { return r <= Products::kMostRows ? r : 1; };
  switch (rows) {
    case 1: return block<Products, kOut, 1>(p, output, outputs, row, turn);
    case 2: return block<Products, kOut, there(2)>(p, output, outputs, row, turn);
    case 3: return block<Products, kOut, there(3)>(p, output, outputs, row, turn);
    case 4: return block<Products, kOut, there(4)>(p, output, outputs, row, turn);
    case 5: return block<Products, kOut, there(5)>(p, output, outputs, row, turn);
    case 6: return block<Products, kOut, there(6)>(p, output, outputs, row, turn);
  }
}

template <class Products>
void products(const FewProductsProblem& p, int64_t begin, int64_t end) {
  constexpr int kMostRows = Products::kMostRows;
  if (p.rows < kBlock) {
    // Bound by memory. One row of weights after another: a single stream is what the processor foresees best, and rows of 4 KiB side by
    // side share cache sets.
    for (int64_t o = begin; o < end; ++o) block_of<Products, 1>(p, o, 1, 0, p.rows, {0, 1});
    return;
  }
  // Of a block of outputs the weights stay in the nearest cache from one turn to the next, rows in the next one.
  for_row_blocks(p.rows, p.inputs * Products::kXBytes, [&](int64_t first, int64_t last) {
    const int64_t turns = (last - first + kMostRows - 1) / kMostRows;
    for (int64_t o = begin; o < end; o += 4)
      for (int64_t i = 0, row = first; row < last; ++i, row += kMostRows)
        block_of<Products, 4>(p, o, end - o, row, smaller(last - row, kMostRows), {i, turns});
  });
}

// Integers of kLanes outputs, two or four inputs each, and of a row, the same two or four in every lane. kDots: with VNNI, which these
// sources are not compiled for: one operation in place of three, with the same sums.
#if defined(__AVX512BW__) && INGOT_LANES == 16
using Packed = __m512i;
INGOT_INLINE Packed load_packed(const uint8_t* from) { return _mm512_loadu_si512(from); }
INGOT_INLINE Packed load_words(const int8_t* from) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
INGOT_INLINE Packed everywhere(int32_t x) { return _mm512_set1_epi32(x); }
INGOT_INLINE Packed low_nibbles(Packed bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(15)); }
INGOT_INLINE Packed high_nibbles(Packed bytes) { return low_nibbles(_mm512_srli_epi16(bytes, 4)); }
template <bool kDots>
INGOT_INLINE Int add_pairs(Int sum, Packed words, Packed in) {
  if constexpr (kDots) {
    asm("vpdpwssd %2, %1, %0" : "+v"(sum) : "v"(words), "v"(in));
    return sum;
  }
  return sum + reinterpret_cast<Int>(_mm512_madd_epi16(words, in));
}
// Nibbles by bytes: at most 15 * 127 each, so that pairs fit into 16 bits.
template <bool kDots>
INGOT_INLINE Int add_fours(Int sum, Packed nibbles, Packed in) {
  if constexpr (kDots) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(nibbles), "v"(in));
    return sum;
  }
  return sum + reinterpret_cast<Int>(_mm512_madd_epi16(_mm512_maddubs_epi16(nibbles, in), _mm512_set1_epi16(1)));
}
INGOT_INLINE bool has_dots() { return __builtin_cpu_supports("avx512vnni"); }
#elif defined(__AVX2__) && INGOT_LANES == 8
using Packed = __m256i;
INGOT_INLINE Packed load_packed(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
INGOT_INLINE Packed load_words(const int8_t* from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
INGOT_INLINE Packed everywhere(int32_t x) { return _mm256_set1_epi32(x); }
INGOT_INLINE Packed low_nibbles(Packed bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
INGOT_INLINE Packed high_nibbles(Packed bytes) { return low_nibbles(_mm256_srli_epi16(bytes, 4)); }
template <bool>
INGOT_INLINE Int add_pairs(Int sum, Packed words, Packed in) {
  return sum + reinterpret_cast<Int>(_mm256_madd_epi16(words, in));
}
template <bool>
INGOT_INLINE Int add_fours(Int sum, Packed nibbles, Packed in) {
  return sum + reinterpret_cast<Int>(_mm256_madd_epi16(_mm256_maddubs_epi16(nibbles, in), _mm256_set1_epi16(1)));
}
INGOT_INLINE bool has_dots() { return false; }
#else
typedef int8_t Packed __attribute__((vector_size(4 * kLanes)));
typedef int16_t Words __attribute__((vector_size(4 * kLanes)));
INGOT_INLINE Packed load_packed(const uint8_t* from) {
  Packed x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
INGOT_INLINE Words load_words(const int8_t* from) {
  Words x;
  for (int i = 0; i < 2 * kLanes; ++i) x[i] = from[i];
  return x;
}
INGOT_INLINE Int everywhere(int32_t x) { return Int{} + x; }
INGOT_INLINE Packed low_nibbles(Packed bytes) { return bytes & 15; }
INGOT_INLINE Packed high_nibbles(Packed bytes) { return (bytes >> 4) & 15; }
template <bool>
INGOT_INLINE Int add_pairs(Int sum, Words words, Int in) {
  const auto x = reinterpret_cast<Words>(in);
  for (int i = 0; i < kLanes; ++i) sum[i] += words[2 * i] * x[2 * i] + words[2 * i + 1] * x[2 * i + 1];
  return sum;
}
template <bool>
INGOT_INLINE Int add_fours(Int sum, Packed nibbles, Int in) {
  const auto x = reinterpret_cast<Packed>(in);
  for (int i = 0; i < 4 * kLanes; ++i) sum[i / 4] += nibbles[i] * x[i];
  return sum;
}
INGOT_INLINE bool has_dots() { return false; }
#endif

constexpr int kParts = kWeightPanel / kLanes;         // vectors of a panel
constexpr int kMostPanelRows = kLanes >= 16 ? 8 : 4;  // whose sums of integers fit into registers

INGOT_INLINE int32_t four_bytes(const void* from) {
  int32_t x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

// A panel of outputs by `kRows` rows: outputs lie in lanes, so that nothing is added up across them.
template <bool kIsInt8, bool kDots, int kRows>
INGOT_INLINE void panel(const FewProductsProblem& p, int64_t output, int64_t end, int64_t row, Turn turn) {
  // 32 bytes for two inputs of int8, 64 for four of one and of the other half of a group of int4.
  constexpr int kStepBytes = kIsInt8 ? 2 * kWeightPanel : 4 * kWeightPanel, kSteps = kIsInt8 ? kWeightGroup / 2 : kWeightGroup / 8;
  const int64_t padded = padded_inputs(p.format, p.inputs), groups = padded / kWeightGroup;
  const auto* w = static_cast<const int8_t*>(p.weights) + output * row_bytes(p.format, p.inputs);
  const float* scales = p.scales + output * groups;
  Float sum[kRows][kParts] = {};
  for (int64_t g = 0; g < groups; ++g) {
    if constexpr (kRows > 2)
      for (int64_t line = turn.index; line < kSteps * kStepBytes / 64; line += turn.count)
        __builtin_prefetch(w + line * 64 + (turn.count == 1 ? kAhead : kWeightPanel * row_bytes(p.format, p.inputs)), 0, 2);
    Int of_group[kRows][kParts];
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 4
      for (int i = 0; i < kParts; ++i) of_group[r][i] = kIsInt8 ? Int{} : Int{} + static_cast<int32_t>(p.x_sums[(row + r) * groups + g]);
#pragma GCC unroll 4
    for (int step = 0; step < kSteps; ++step, w += kStepBytes) {
      if (kRows <= 2 && step * kStepBytes % 64 == 0) __builtin_prefetch(w + kAhead);
      if constexpr (kIsInt8) {
        decltype(load_words(w)) words[kParts];
#pragma GCC unroll 4
        for (int i = 0; i < kParts; ++i) words[i] = load_words(w + i * 2 * kLanes);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const auto in = everywhere(four_bytes(p.x16 + (row + r) * padded + g * kWeightGroup + 2 * step));
#pragma GCC unroll 4
          for (int i = 0; i < kParts; ++i) of_group[r][i] = add_pairs<kDots>(of_group[r][i], words[i], in);
        }
      } else {
        Packed low[kParts], high[kParts];
#pragma GCC unroll 4
        for (int i = 0; i < kParts; ++i) {
          const Packed bytes = load_packed(reinterpret_cast<const uint8_t*>(w) + i * 4 * kLanes);
          low[i] = low_nibbles(bytes), high[i] = high_nibbles(bytes);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const int8_t* x = p.x8 + (row + r) * padded + g * kWeightGroup + 4 * step;
          const auto first = everywhere(four_bytes(x)), second = everywhere(four_bytes(x + kWeightGroup / 2));
#pragma GCC unroll 4
          for (int i = 0; i < kParts; ++i)
            of_group[r][i] = add_fours<kDots>(add_fours<kDots>(of_group[r][i], low[i], first), high[i], second);
        }
      }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kParts; ++i) {
      const Float scale = load(scales + g * kWeightPanel + i * kLanes);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r)
        sum[r][i] =
            fused(__builtin_convertvector(of_group[r][i], Float), kIsInt8 ? scale : scale * p.x_scales[(row + r) * groups + g], sum[r][i]);
    }
  }
  for (int r = 0; r < kRows; ++r)
    for (int i = 0; i < kParts; ++i)
      if (const int64_t o = output + i * kLanes, left = end - o; left > 0)
        store_some(p.out + (row + r) * p.out_stride + o,
                   fused(sum[r][i], broadcast(p.x_scale[row + r]), p.bias ? load_some(p.bias + o, left) : Float{}), left);
}

// `rows` rows, at most kMostPanelRows.
template <bool kIsInt8, bool kDots>
INGOT_INLINE void panel_of(const FewProductsProblem& p, int64_t output, int64_t end, int64_t row, int64_t rows, Turn turn) {
  static_assert(kMostPanelRows <= 8);
  constexpr auto there = [](int r) { return r <= kMostPanelRows ? r : 1; };
  switch (rows) {
    case 1: return panel<kIsInt8, kDots, 1>(p, output, end, row, turn);
    case 2: return panel<kIsInt8, kDots, 2>(p, output, end, row, turn);
    case 3: return panel<kIsInt8, kDots, 3>(p, output, end, row, turn);
    case 4: return panel<kIsInt8, kDots, 4>(p, output, end, row, turn);
    case 5: return panel<kIsInt8, kDots, there(5)>(p, output, end, row, turn);
    case 6: return panel<kIsInt8, kDots, there(6)>(p, output, end, row, turn);
    case 7: return panel<kIsInt8, kDots, there(7)>(p, output, end, row, turn);
    case 8: return panel<kIsInt8, kDots, there(8)>(p, output, end, row, turn);
  }
}

template <bool kIsInt8, bool kDots>
void quantized_products(const FewProductsProblem& p, int64_t begin, int64_t end) {
  for_row_blocks(p.rows, p.inputs * (kIsInt8 ? 2 : 1), [&](int64_t first, int64_t last) {
    const int64_t turns = (last - first + kMostPanelRows - 1) / kMostPanelRows;
    for (int64_t o = begin; o < end; o += kWeightPanel)
      for (int64_t i = 0, row = first; row < last; ++i, row += kMostPanelRows)
        panel_of<kIsInt8, kDots>(p, o, end, row, smaller(last - row, kMostPanelRows), {i, turns});
  });
}

}  // namespace

namespace {

// `count` numbers by `inverse`, half away from zero; zeros behind those that are `there`. T has the bits.
template <class T>
INGOT_INLINE void round_to(const float* x, int64_t there, int64_t count, float inverse, T* to) {
  typedef T Few __attribute__((vector_size(sizeof(T) * kLanes)));
  for (int64_t i = 0; i < count; i += kLanes) {
    const Float value = i < there ? load_some(x + i, there - i) * inverse : Float{};
    const Int rounded = __builtin_convertvector(value + (value < 0.0f ? broadcast(-0.5f) : broadcast(0.5f)), Int);
    const Few few = __builtin_convertvector(rounded, Few);
    __builtin_memcpy(to + i, &few, sizeof few);
  }
}

struct Largest {
  float most, odd;  // odd: not a number where an input is not finite, else 0
};
INGOT_INLINE Largest largest_of(const float* x, int64_t count) {
  Float largest{}, odd{};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Float value = load_some(x + i, count - i);
    largest = max(max(largest, value), -value);
    odd += value * 0.0f;
  }
  return {max_of_lanes(largest)[0], sum_of_lanes(odd)[0]};
}

template <class T>
INGOT_INLINE float sum_of(const T* words) {
  int32_t sum = 0;
  for (int64_t i = 0; i < kWeightGroup; ++i) sum += words[i];
  return static_cast<float>(sum);
}

}  // namespace

void round_few_rows(const FewProductsProblem& p, int64_t begin, int64_t end) {
  const int64_t padded = padded_inputs(p.format, p.inputs), groups = padded / kWeightGroup;
  for (int64_t row = begin; row < end; ++row) {
    const float* x = row_of(p, row);
    if (p.format == WeightFormat::bf16) {
      const int64_t paired = paired_inputs(p.inputs);
      auto* to = reinterpret_cast<bf16*>(p.x16 + row * paired);
      for (int64_t i = 0; i < paired; i += kLanes) store(to + i, i < p.inputs ? load_some(x + i, p.inputs - i) : Float{});
      continue;
    }
    if (p.format == WeightFormat::int8) {
      const auto [most, odd] = largest_of(x, p.inputs);
      const float scale = most > 0 ? most / 32767.0f : 1.0f;
      round_to(x, p.inputs, padded, 1.0f / scale, p.x16 + row * padded);  // padded is a multiple of all widths
      p.x_scale[row] = scale + odd;
      continue;
    }
    p.x_scale[row] = 1;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t first = g * kWeightGroup, there = smaller(larger(p.inputs - first, 0), kWeightGroup);
      const auto [most, odd] = largest_of(x + first, there);
      const float scale = most > 0 ? most / 127.0f : 1.0f;
      int8_t* to = p.x8 + row * padded + first;
      round_to(x + first, there, kWeightGroup, 1.0f / scale, to);
      p.x_scales[row * groups + g] = scale;
      p.x_sums[row * groups + g] = -8 * sum_of(to);
      p.x_scale[row] += odd;
    }
  }
}

void few_products(const FewProductsProblem& p, int64_t begin, int64_t end) {
  switch (p.format) {
    case WeightFormat::fp32: return products<Singles<float>>(p, begin, end);
    case WeightFormat::bf16:
#if defined(__AVX512BW__) && INGOT_LANES == 16
      if (p.x16) return products<Pairs>(p, begin, end);
#endif
      return products<Singles<bf16>>(p, begin, end);
    case WeightFormat::int8:
      return has_dots() ? quantized_products<true, true>(p, begin, end) : quantized_products<true, false>(p, begin, end);
    case WeightFormat::int4:
      return has_dots() ? quantized_products<false, true>(p, begin, end) : quantized_products<false, false>(p, begin, end);
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
