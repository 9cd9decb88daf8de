// A matrix times a few rows. Blocks of outputs by rows of x are summed up in registers, as many as there are; of a quantized matrix the
// products of integers are summed up in 32 bits over each group, then scaled.
#include "kernels/cpu/rows_few_products.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kAhead = 4096;                 // bytes of weights that are prefetched for one row
constexpr int kMostRows = kLanes >= 16 ? 4 : 2;  // of x at a time, so that 4 outputs of each fit into registers

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
template <class Products, int kOut, int kRows, bool kPrefetches>
INGOT_INLINE void block(const FewProductsProblem& p, int64_t output, int64_t outputs, int64_t row) {
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
    if (kPrefetches && i * kBytes % 64 == 0) {
#pragma GCC unroll 4
      for (int o = 0; o < kOut; ++o)
        __builtin_prefetch(w[o] + i + (kOut == 1 ? kAhead / kBytes : 3 * kOut * p.inputs), 0, kOut == 1 ? 3 : 2);
    }
#pragma GCC unroll 4
    for (int o = 0; o < kOut; ++o) weights[o] = Products::weights(w[o] + i);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const auto in = Products::in(x[r] + i);
#pragma GCC unroll 4
      for (int o = 0; o < kOut; ++o) sum[r][o] = Products::add(sum[r][o], weights[o], in);
    }
  }
  if (const int64_t left = p.inputs - whole; left > 0)
#pragma GCC unroll 4
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

// Fewer rows than a block has.
template <class Products, int kOut, bool kPrefetches>
INGOT_INLINE void rest(const FewProductsProblem& p, int64_t output, int64_t outputs, int64_t row, int64_t rows) {
  constexpr int kThree = kMostRows == 4 ? 3 : 1, kTwo = kMostRows == 4 ? 2 : 1;
  if (rows == 3) block<Products, kOut, kThree, kPrefetches>(p, output, outputs, row);
  if (rows == 2) block<Products, kOut, kTwo, kPrefetches>(p, output, outputs, row);
  if (rows == 1) block<Products, kOut, 1, kPrefetches>(p, output, outputs, row);
}

template <class Products>
void products(const FewProductsProblem& p, int64_t begin, int64_t end) {
  if (p.rows < kMostRows) {
    // Bound by memory. One row of weights after another: a single stream is what the processor foresees best, and rows of 4 KiB side by
    // side share cache sets.
    for (int64_t o = begin; o < end; ++o) rest<Products, 1, true>(p, o, 1, 0, p.rows);
    return;
  }
  // Of a block of outputs the weights stay in the nearest cache from one group of rows to the next, rows in the next one.
  for_row_blocks(p.rows, p.inputs * Products::kXBytes, [&](int64_t first, int64_t last) {
    for (int64_t o = begin; o < end; o += 4) {
      int64_t row = first;
      if (last - row >= kMostRows) block<Products, 4, kMostRows, true>(p, o, end - o, row), row += kMostRows;
      for (; row + kMostRows <= last; row += kMostRows) block<Products, 4, kMostRows, false>(p, o, end - o, row);
      rest<Products, 4, false>(p, o, end - o, row, last - row);
    }
  });
}

// `count` numbers, at most a vector, and zeros behind them.
INGOT_INLINE Float load_first(const float* from, int64_t count) {
#if defined(__AVX512F__) && INGOT_LANES == 16
  return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << smaller(count, kLanes)) - 1), from);
#else
  return load_some(from, count);
#endif
}

// Vectors of 16-bit integers, and their products in pairs.
#if defined(__AVX512BW__) && INGOT_LANES == 16
using Words = __m512i;
constexpr int kWords = 32;
INGOT_INLINE Words load_words(const int16_t* from) { return _mm512_loadu_si512(from); }
INGOT_INLINE Words load_bytes(const int8_t* from) {
  return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}
INGOT_INLINE Words pairs(Words a, Words b) { return _mm512_madd_epi16(a, b); }
INGOT_INLINE Words add_pairs(Words a, Words b) { return _mm512_add_epi32(a, b); }
INGOT_INLINE Float to_floats(Words pairs) { return reinterpret_cast<Float>(_mm512_cvtepi32_ps(pairs)); }
// Products of nibbles with bytes, added up in fours: at most 15 * 127 each, so that pairs fit into 16 bits.
constexpr int kBytes = 64;
INGOT_INLINE Words load_packed(const uint8_t* from) { return _mm512_loadu_si512(from); }
INGOT_INLINE Words low_nibbles(Words bytes) { return _mm512_and_si512(bytes, _mm512_set1_epi8(15)); }
INGOT_INLINE Words high_nibbles(Words bytes) { return low_nibbles(_mm512_srli_epi16(bytes, 4)); }
template <bool kDots>
INGOT_INLINE Words fours(Words nibbles, const int8_t* x) {
  const Words in = _mm512_loadu_si512(x);
  if constexpr (kDots) {
    // VNNI, which this source is not compiled for: one operation in place of two, with the same sums. (Of int8 it gains nothing.)
    Words sums = _mm512_setzero_si512();
    asm("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(nibbles), "vm"(in));
    return sums;
  }
  return _mm512_madd_epi16(_mm512_maddubs_epi16(nibbles, in), _mm512_set1_epi16(1));
}
INGOT_INLINE bool has_dots() { return __builtin_cpu_supports("avx512vnni"); }
#elif defined(__AVX2__) && INGOT_LANES == 8
using Words = __m256i;
constexpr int kWords = 16;
INGOT_INLINE Words load_words(const int16_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
INGOT_INLINE Words load_bytes(const int8_t* from) { return _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))); }
INGOT_INLINE Words pairs(Words a, Words b) { return _mm256_madd_epi16(a, b); }
INGOT_INLINE Words add_pairs(Words a, Words b) { return _mm256_add_epi32(a, b); }
INGOT_INLINE Float to_floats(Words pairs) { return reinterpret_cast<Float>(_mm256_cvtepi32_ps(pairs)); }
constexpr int kBytes = 32;
INGOT_INLINE Words load_packed(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
INGOT_INLINE Words low_nibbles(Words bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
INGOT_INLINE Words high_nibbles(Words bytes) { return low_nibbles(_mm256_srli_epi16(bytes, 4)); }
template <bool>
INGOT_INLINE Words fours(Words nibbles, const int8_t* x) {
  const Words in = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
  return _mm256_madd_epi16(_mm256_maddubs_epi16(nibbles, in), _mm256_set1_epi16(1));
}
INGOT_INLINE bool has_dots() { return false; }
#else
constexpr int kWords = 2 * kLanes;
struct Words {
  int16_t word[kWords];
};
struct Pairs {
  int32_t pair[kLanes];
};
INGOT_INLINE Words load_words(const int16_t* from) {
  Words x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
INGOT_INLINE Words load_bytes(const int8_t* from) {
  Words x;
  for (int i = 0; i < kWords; ++i) x.word[i] = from[i];
  return x;
}
INGOT_INLINE Pairs pairs(Words a, Words b) {
  Pairs x;
  for (int i = 0; i < kLanes; ++i) x.pair[i] = a.word[2 * i] * b.word[2 * i] + a.word[2 * i + 1] * b.word[2 * i + 1];
  return x;
}
INGOT_INLINE Pairs add_pairs(Pairs a, Pairs b) {
  for (int i = 0; i < kLanes; ++i) a.pair[i] += b.pair[i];
  return a;
}
INGOT_INLINE Float to_floats(Pairs x) {
  Float y;
  for (int i = 0; i < kLanes; ++i) y[i] = static_cast<float>(x.pair[i]);
  return y;
}
constexpr int kBytes = 4 * kLanes;
struct Bytes {
  uint8_t byte[kBytes];
};
INGOT_INLINE Bytes load_packed(const uint8_t* from) {
  Bytes x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}
INGOT_INLINE Bytes low_nibbles(Bytes bytes) {
  for (int i = 0; i < kBytes; ++i) bytes.byte[i] &= 15;
  return bytes;
}
INGOT_INLINE Bytes high_nibbles(Bytes bytes) {
  for (int i = 0; i < kBytes; ++i) bytes.byte[i] >>= 4;
  return bytes;
}
template <bool>
INGOT_INLINE Pairs fours(Bytes nibbles, const int8_t* x) {
  Pairs sums{};
  for (int i = 0; i < kBytes; ++i) sums.pair[i / 4] += nibbles.byte[i] * x[i];
  return sums;
}
INGOT_INLINE bool has_dots() { return false; }
#endif

// What the quantized formats have in common: of `kOut` outputs (only `outputs` of them are there) and `kRows` rows the lanes of sums.
template <int kOut, int kRows>
struct QuantizedBlock {
  const FewProductsProblem& p;
  int64_t output, outputs, row, padded, groups;
  const float* scales[kOut];
  const int16_t* x[kRows];
  Float sum[kOut][kRows] = {};

  INGOT_INLINE QuantizedBlock(const FewProductsProblem& problem, int64_t first, int64_t there, int64_t first_row)
      : p(problem),
        output(first),
        outputs(there),
        row(first_row),
        padded(padded_inputs(p.format, p.inputs)),
        groups(padded / kWeightGroup) {
    for (int o = 0; o < kOut; ++o) scales[o] = p.scales + place(o) * groups;
    for (int r = 0; r < kRows; ++r) x[r] = p.x16 ? p.x16 + (row + r) * padded : nullptr;
  }
  INGOT_INLINE int64_t place(int o) const { return output + smaller(o, outputs - 1); }

  INGOT_INLINE void int8() {
    const int8_t* w[kOut];
    for (int o = 0; o < kOut; ++o) w[o] = static_cast<const int8_t*>(p.weights) + place(o) * padded;
    for (int64_t g = 0; g < groups; ++g)
#pragma GCC unroll 4
      for (int o = 0; o < kOut; ++o) {
        const Float scale = broadcast(scales[o][g]);
        decltype(pairs(load_bytes(w[0]), load_words(x[0]))) of_group[kRows];
#pragma GCC unroll 4
        for (int64_t i = 0; i < kWeightGroup; i += kWords) {
          const auto weights = load_bytes(w[o] + g * kWeightGroup + i);
#pragma GCC unroll 4
          for (int r = 0; r < kRows; ++r) {
            const auto some = pairs(weights, load_words(x[r] + g * kWeightGroup + i));
            of_group[r] = i == 0 ? some : add_pairs(of_group[r], some);
          }
        }
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) sum[o][r] = fused(to_floats(of_group[r]), scale, sum[o][r]);
      }
  }

  template <bool kPrefetches, bool kDots>
  INGOT_INLINE void int4() {
    static_assert(kInt4Block == 2 * kWeightGroup && kWeightGroup % kBytes == 0 && kLanes % 2 == 0);
    const uint8_t* w[kOut];
    for (int o = 0; o < kOut; ++o) w[o] = static_cast<const uint8_t*>(p.weights) + place(o) * (padded / 2);
    for (int64_t first = 0; first < groups; first += kLanes) {
      // Scales of both sides multiplied, of as many groups as there are lanes; and what the 8 that each weight has too much adds.
      alignas(64) float scale[kOut][kRows][kLanes];
#pragma GCC unroll 4
      for (int o = 0; o < kOut; ++o) {
        const Float of_weights = load_first(scales[o] + first, groups - first);
#pragma GCC unroll 4
        for (int r = 0; r < kRows; ++r) {
          store(scale[o][r], of_weights * load_first(p.x_scales + (row + r) * groups + first, groups - first));
          sum[o][r] += of_weights * -8.0f * load_first(p.x_sums + (row + r) * groups + first, groups - first);
        }
      }
      const int64_t end = smaller(first + kLanes, groups);
      for (int64_t g = first; g < end; g += 2)
#pragma GCC unroll 2
        for (int64_t i = 0; i < kWeightGroup; i += kBytes)
#pragma GCC unroll 4
          for (int o = 0; o < kOut; ++o) {
            if (kPrefetches) __builtin_prefetch(w[o] + g / 2 * kWeightGroup + i + kAhead);
            const auto bytes = load_packed(w[o] + g / 2 * kWeightGroup + i);
            const auto low = low_nibbles(bytes), high = high_nibbles(bytes);
#pragma GCC unroll 4
            for (int r = 0; r < kRows; ++r) {
              const int8_t* in = p.x8 + (row + r) * padded + g * kWeightGroup + i;
              sum[o][r] = fused(to_floats(fours<kDots>(low, in)), broadcast(scale[o][r][g - first]), sum[o][r]);
              sum[o][r] = fused(to_floats(fours<kDots>(high, in + kWeightGroup)), broadcast(scale[o][r][g - first + 1]), sum[o][r]);
            }
          }
    }
  }

  INGOT_INLINE void finish() const {
    float wholes[kOut * kRows];
    if constexpr (kOut * kRows % 4 == 0)
      for (int i = 0; i < kOut * kRows; i += 4) {
        const auto at = [&](int j) { return sum[(i + j) / kRows][(i + j) % kRows]; };
        const Float four[4] = {at(0), at(1), at(2), at(3)};
        sums_of_lanes(four, wholes + i);
      }
    else
      for (int i = 0; i < kOut * kRows; ++i) wholes[i] = sum_of_lanes(sum[i / kRows][i % kRows])[0];
    for (int r = 0; r < kRows; ++r)
      for (int o = 0; o < smaller(kOut, outputs); ++o) {
        const float whole = wholes[o * kRows + r], bias = p.bias ? p.bias[output + o] : 0.0f;
        float& out = p.out[(row + r) * p.out_stride + output + o];
        // Fused wherever it can be, not where the compiler likes to: the same bits in every block.
#if defined(__FMA__)
        out = __builtin_fmaf(whole, p.x_scale[row + r], bias);
#else
        out = whole * p.x_scale[row + r] + bias;
#endif
      }
  }
};

template <bool kIsInt8, bool kDots, int kOut, int kRows, bool kPrefetches = false>
INGOT_INLINE void quantized_block(const FewProductsProblem& p, int64_t output, int64_t outputs, int64_t row) {
  QuantizedBlock<kOut, kRows> block(p, output, outputs, row);
  if constexpr (kIsInt8) block.int8();
  else block.template int4<kPrefetches, kDots>();
  block.finish();
}

template <bool kIsInt8, bool kDots>
void quantized_products(const FewProductsProblem& p, int64_t begin, int64_t end) {
  if (p.rows == 1) {
    // Bound by memory, which one row of weights after another reads best.
    for (int64_t o = begin; o < end; ++o) quantized_block<kIsInt8, kDots, 1, 1, true>(p, o, 1, 0);
    return;
  }
  for_row_blocks(p.rows, p.inputs * (kIsInt8 ? 2 : 1), [&](int64_t first, int64_t last) {
    for (int64_t o = begin; o < end; o += 2) {
      int64_t row = first;
      for (; row + 4 <= last; row += 4) quantized_block<kIsInt8, kDots, 2, 4>(p, o, end - o, row);
      for (; row + 2 <= last; row += 2) quantized_block<kIsInt8, kDots, 2, 2>(p, o, end - o, row);
      if (row < last) quantized_block<kIsInt8, kDots, 2, 1>(p, o, end - o, row);
    }
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
      p.x_sums[row * groups + g] = sum_of(to) * scale;
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
    case WeightFormat::int8: return quantized_products<true, false>(p, begin, end);
    case WeightFormat::int4:
      return has_dots() ? quantized_products<false, true>(p, begin, end) : quantized_products<false, false>(p, begin, end);
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
