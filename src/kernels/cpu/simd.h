// Vectors of floats at the width of the instruction set that the including source is compiled for (isa.h), by the compiler's
// own vector types: arithmetic and comparison operators work lane by lane, a product and a sum become one fused operation
// where the set has it. Here: loads and stores (bf16 too), reductions, exponentials. Limit: exp2 and exp take about 10
// operations a vector, so 4 to 5 cycles where two can start in each.
#pragma once

#include <cstdint>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifndef INGOT_ISA
#define INGOT_ISA portable
#endif
#ifndef INGOT_LANES
#if defined(__AVX512F__)
#define INGOT_LANES 16
#elif defined(__AVX__)
#define INGOT_LANES 8
#else
#define INGOT_LANES 4
#endif
#endif
#define INGOT_INLINE [[gnu::always_inline]] inline

namespace ingot::kernels::cpu::INGOT_ISA {

inline constexpr int kLanes = INGOT_LANES;
typedef float Float __attribute__((vector_size(4 * kLanes)));
typedef int32_t Int __attribute__((vector_size(4 * kLanes)));  // also what comparisons of Float give: 0 or -1
typedef uint32_t Bits __attribute__((vector_size(4 * kLanes)));
typedef uint16_t HalfBits __attribute__((vector_size(2 * kLanes)));
using bf16 = uint16_t;  // the upper half of a float

INGOT_INLINE int64_t round_down(int64_t x, int64_t step) { return x / step * step; }
INGOT_INLINE int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }
INGOT_INLINE int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
INGOT_INLINE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

INGOT_INLINE Float broadcast(float x) { return x - Float{}; }

INGOT_INLINE Int lane_index() {
  Int index;
  for (int i = 0; i < kLanes; ++i) index[i] = i;
  return index;
}

INGOT_INLINE Float load(const float* from) {
  Float x;
  __builtin_memcpy(&x, from, sizeof x);
  return x;
}

INGOT_INLINE void store(float* to, Float x) { __builtin_memcpy(to, &x, sizeof x); }

INGOT_INLINE Float load(const bf16* from) {
  HalfBits half;
  __builtin_memcpy(&half, from, sizeof half);
  // GCC 12 widens halves of a vector apart and joins them.
#if defined(__AVX512F__) && INGOT_LANES == 16
  return reinterpret_cast<Float>(_mm512_slli_epi32(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(half)), 16));
#elif defined(__AVX2__) && INGOT_LANES == 8
  return reinterpret_cast<Float>(_mm256_slli_epi32(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(half)), 16));
#else
  return reinterpret_cast<Float>(__builtin_convertvector(half, Bits) << 16);
#endif
}

// The nearest bf16 to x, ties to even, in the upper half of each lane; the lower half is undefined. A NaN stays one.
INGOT_INLINE Bits nearest_bf16(Float x) {
  const Bits bits = reinterpret_cast<Bits>(x), nan = Bits{} + 0x7fc00000;
#if defined(__AVX512F__) && INGOT_LANES == 16
  // Masks, which GCC 12 does not find, and by which a conversion takes a third less.
  const auto raw = reinterpret_cast<__m512i>(bits), down = reinterpret_cast<__m512i>(Bits{} + 0x7fff),
             up = reinterpret_cast<__m512i>(Bits{} + 0x8000);
  const auto is_odd = _mm512_test_epi32_mask(raw, reinterpret_cast<__m512i>(Bits{} + 0x10000)),
             is_number = _mm512_cmp_ps_mask(x, x, _CMP_ORD_Q);
  return reinterpret_cast<Bits>(
      _mm512_mask_add_epi32(reinterpret_cast<__m512i>(nan), is_number, raw, _mm512_mask_blend_epi32(is_odd, down, up)));
#else
  return x != x ? nan : bits + 0x7fff + ((bits >> 16) & 1);
#endif
}

INGOT_INLINE void store(bf16* to, Float x) {
#if defined(__AVX512BW__) && INGOT_LANES == 16
  typedef uint16_t Halves __attribute__((vector_size(4 * kLanes)));
  const Halves upper =
      __builtin_shuffle(reinterpret_cast<Halves>(nearest_bf16(x)), Halves{1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31});
  __builtin_memcpy(to, &upper, sizeof(HalfBits));
#else
  const HalfBits half = __builtin_convertvector(nearest_bf16(x) >> 16, HalfBits);
  __builtin_memcpy(to, &half, sizeof half);
#endif
}

// What a T holds of x.
template <class T>
INGOT_INLINE Float rounded_to(Float x) {
  if constexpr (sizeof(T) == sizeof(bf16)) return reinterpret_cast<Float>(nearest_bf16(x) & 0xffff0000);
  else return x;
}

// The first `count` lanes (fewer than kLanes); the others are read as 0 and not written.
template <class T>
INGOT_INLINE Float load_part(const T* from, int64_t count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__) && INGOT_LANES == 16
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  if constexpr (sizeof(T) == sizeof(float)) {
    return _mm512_maskz_loadu_ps(mask, from);
  } else {
    static_assert(sizeof(T) == sizeof(bf16));
    const __m256i half = _mm256_maskz_loadu_epi16(mask, from);
    return load(reinterpret_cast<const bf16*>(&half));
  }
#else
  T buffer[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) buffer[i] = from[i];
  return load(buffer);
#endif
}

template <class T>
INGOT_INLINE void store_part(T* to, Float x, int64_t count) {
#if defined(__AVX512BW__) && defined(__AVX512VL__) && INGOT_LANES == 16
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  if constexpr (sizeof(T) == sizeof(float)) {
    _mm512_mask_storeu_ps(to, mask, x);
  } else {
    bf16 buffer[kLanes];
    store(buffer, x);
    __m256i half;
    __builtin_memcpy(&half, buffer, sizeof half);
    _mm256_mask_storeu_epi16(to, mask, half);
  }
#else
  T buffer[kLanes];
  store(buffer, x);
  for (int64_t i = 0; i < count; ++i) to[i] = buffer[i];
#endif
}

INGOT_INLINE float to_float(float x) { return x; }
INGOT_INLINE float to_float(bf16 x) { return __builtin_bit_cast(float, static_cast<uint32_t>(x) << 16); }

// A NaN in b is passed on; one in a is not. Intrinsics because the compiler makes two operations of a > b ? a : b
// beside a constant.
INGOT_INLINE Float max(Float a, Float b) {
#if defined(__AVX512F__) && INGOT_LANES == 16
  return _mm512_max_ps(a, b);
#elif defined(__AVX__) && INGOT_LANES == 8
  return _mm256_max_ps(a, b);
#elif defined(__SSE__) && INGOT_LANES == 4
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

INGOT_INLINE Float min(Float a, Float b) {
#if defined(__AVX512F__) && INGOT_LANES == 16
  return _mm512_min_ps(a, b);
#elif defined(__AVX__) && INGOT_LANES == 8
  return _mm256_min_ps(a, b);
#elif defined(__SSE__) && INGOT_LANES == 4
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}

// a * b + c, fused wherever it can be, not where the compiler likes to: the same bits in every block.
INGOT_INLINE Float fused(Float a, Float b, Float c) {
#if defined(__AVX512F__) && INGOT_LANES == 16
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__) && INGOT_LANES == 8
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

template <int kStep>
INGOT_INLINE Float rotated(Float x) {
  return __builtin_shuffle(x, (lane_index() + kStep) & (kLanes - 1));
}

// All lanes added up (or the largest), in every lane; the order of additions is fixed.
INGOT_INLINE Float sum_of_lanes(Float x) {
  if constexpr (kLanes >= 16) x += rotated<8>(x);
  if constexpr (kLanes >= 8) x += rotated<4>(x);
  x += rotated<2>(x);
  return x + rotated<1>(x);
}

// Pairs of lanes that differ in the bit kBit of their number, added up: those of a where i lacks the bit, those of b where it has it.
template <int kBit>
INGOT_INLINE Float sum_of_halves(Float a, Float b) {
  const Int lane = lane_index(), of_b = (lane & kBit) * (kLanes / kBit);
  return __builtin_shuffle(a, b, (lane & ~kBit) + of_b) + __builtin_shuffle(a, b, (lane | kBit) + of_b);
}

// The sum of the lanes of x[i], in lane i.
INGOT_INLINE Float sums_of_lanes(Float (&x)[kLanes]) {
  for (int i = 0; i < kLanes; i += 2) x[i] = sum_of_halves<1>(x[i], x[i + 1]);
  for (int i = 0; i < kLanes; i += 4) x[i] = sum_of_halves<2>(x[i], x[i + 2]);
  if constexpr (kLanes >= 8)
    for (int i = 0; i < kLanes; i += 8) x[i] = sum_of_halves<4>(x[i], x[i + 4]);
  if constexpr (kLanes >= 16) x[0] = sum_of_halves<8>(x[0], x[8]);
  return x[0];
}

INGOT_INLINE Float max_of_lanes(Float x) {
  if constexpr (kLanes >= 16) x = max(x, rotated<8>(x));
  if constexpr (kLanes >= 8) x = max(x, rotated<4>(x));
  x = max(x, rotated<2>(x));
  return max(x, rotated<1>(x));
}

// Adding it to a float leaves the nearest integer plus 127, a float's biased exponent, in the low bits of the sum.
inline constexpr float kRounder = 12582912.0f + 127.0f;  // 1.5 * 2^23 + 127

// y * 2^n where rounded = n + kRounder and n is in [-127, 128]: 0 for n = -127, infinity for n = 128.
INGOT_INLINE Float scaled_by_power(Float y, Float rounded) { return y * reinterpret_cast<Float>(reinterpret_cast<Bits>(rounded) << 23); }

/// 2^x for x <= 0, about 1 ulp; 0 below -126.5, NaN for NaN. Minimax polynomial of degree 6 on [-1/2, 1/2] (relative error
/// 2.6e-9, found by the Remez exchange with the constant term fixed at 1).
INGOT_INLINE Float exp2_of_negative(Float x) {
  x = max(broadcast(-127.0f), x);
  const Float rounded = x + kRounder;
  const Float f = x - (rounded - kRounder);
  Float y = f * 1.55946781613e-4f + 1.34066439024e-3f;
  y = y * f + 9.61769297299e-3f;
  y = y * f + 5.55031055101e-2f;
  y = y * f + 0.240226527829f;
  y = y * f + 0.693147214968f;
  y = y * f + 1.0f;
  return scaled_by_power(y, rounded);
}

/// 2^x, the same for every x; infinity from 127.5.
INGOT_INLINE Float exp2(Float x) { return exp2_of_negative(min(broadcast(128.0f), x)); }

/// e^x, about 1 ulp; 0 below -87.7, infinity from 88.37, NaN for NaN. n ln 2 is taken off in two parts (Cody and Waite), then
/// a minimax polynomial of degree 6 as above.
INGOT_INLINE Float exp(Float x) {
  x = min(broadcast(88.7f), max(broadcast(-88.0f), x));
  const Float rounded = x * 1.44269504089f + kRounder;
  const Float n = rounded - kRounder;
  const Float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  Float y = r * 1.40612409434e-3f + 8.37901116061e-3f;
  y = y * r + 4.16647772892e-2f;
  y = y * r + 0.166663654413f;
  y = y * r + 0.500000043438f;
  y = y * r + 1.0f;
  y = y * r + 1.0f;
  return scaled_by_power(y, rounded);
}

/// 1 / x of x from 1 on, about 1 ulp; 0 for infinity, NaN for NaN. AVX-512 divides in 8 to 16 cycles, and estimates to 14 bits in 2 to 4.
/// Estimates, and so last bits, may differ between makes of CPUs.
INGOT_INLINE Float reciprocal(Float x) {
#if defined(__AVX512F__) && INGOT_LANES == 16
  const Float estimate = reinterpret_cast<Float>(_mm512_rcp14_ps(reinterpret_cast<__m512>(x)));
  return estimate + estimate * (broadcast(1.0f) - min(broadcast(1e38f), x) * estimate);
#else
  return broadcast(1.0f) / x;
#endif
}

INGOT_INLINE Float sigmoid(Float x) { return reciprocal(exp(-x) + 1.0f); }

}  // namespace ingot::kernels::cpu::INGOT_ISA
