// Rounding to what FP8 holds.
#include "kernels/cpu/rows_fp8.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kColumns = 1024;  // at a time; whole tiles

struct Format {
  int32_t largest_exponent, lowest_exponent, mantissa_bits;
  int32_t bias() const { return 1 - lowest_exponent; }
};
constexpr Format kE4m3{8, -6, 3}, kE5m2{15, -14, 2};
constexpr int32_t kFractionOfLargest = 0x600000;  // both end at 1.75 times a power of two

INGOT_INLINE Float power_of_two(Int exponent) { return reinterpret_cast<Float>((exponent + 127) << 23); }
INGOT_INLINE Float magnitude(Float x) { return reinterpret_cast<Float>(reinterpret_cast<Int>(x) & 0x7fffffff); }

// The exponent of the smallest power of two whose multiples reach `largest`.
INGOT_INLINE Int scale_exponent(Float largest, const Format& format) {
  const Int bits = reinterpret_cast<Int>(largest);
  const Int exponent = (bits >> 23) - 127 - format.largest_exponent - ((bits & 0x7fffff) > kFractionOfLargest);  // true is -1
  const Int low = Int{} - 100, high = Int{} + 100;
  return exponent < low ? low : exponent > high ? high : exponent;
}

// To the nearest multiple of the step that the format has at x: adding 1.5 x 2^23 steps leaves no finer bits. Zeros keep their sign.
INGOT_INLINE Float rounded(Float x, const Format& format) {
  const Float power = reinterpret_cast<Float>(reinterpret_cast<Int>(x) & 0x7f800000);
  const Float lowest = power_of_two(Int{} + format.lowest_exponent);
  const Float shift = (power < lowest ? lowest : power) * (1.5f * static_cast<float>(1 << (23 - format.mantissa_bits)));
  return reinterpret_cast<Float>(reinterpret_cast<Bits>((x + shift) - shift) | (reinterpret_cast<Bits>(x) & 0x80000000));
}

// Widens the largest of each column to that of its tile.
void spread_over_tiles(float* largest, int64_t width, int64_t tile) {
  if (tile == 1) return;
  for (int64_t from = 0; from < width; from += tile) {
    const int64_t end = smaller(from + tile, width);
    float most = 0;
    for (int64_t i = from; i < end; ++i) most = largest[i] > most ? largest[i] : most;
    for (int64_t i = from; i < end; ++i) largest[i] = most;
  }
}

template <class T>
void round_tiles(const Fp8Problem& p, const Format& format, int64_t first, int64_t last, int64_t from, int64_t width) {
  float largest[kColumns];
  const T* x = static_cast<const T*>(p.x) + from;
  T* out = static_cast<T*>(p.out) + from;
  if (!p.largest) {
    for (float& one : largest) one = 0;
    for (int64_t row = first; row < last; ++row)
      for (int64_t i = 0; i < width; i += kLanes) {
        const int64_t n = width - i;
        const Float before = load_some(largest + i, n), here = magnitude(load_some(x + row * p.width + i, n));
        store_some(largest + i, here > before ? here : before, n);
      }
    spread_over_tiles(largest, width, p.tile_columns);
  }
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    const Int exponent = scale_exponent(p.largest ? broadcast(*p.largest) : load_some(largest + i, n), format);
    const Float scale = power_of_two(exponent), inverse = power_of_two(-exponent);
    for (int64_t row = first; row < last; ++row)
      store_some(out + row * p.width + i, rounded(load_some(x + row * p.width + i, n) * inverse, format) * scale, n);
  }
}

template <class T>
float largest_of(const T* x, int64_t width) {
  Float most{};
  for (int64_t i = 0; i < width; i += kLanes) {
    const Float here = magnitude(load_some(x + i, width - i));
    most = here > most ? here : most;
  }
  float largest = 0;
  for (int i = 0; i < kLanes; ++i) largest = most[i] > largest ? most[i] : largest;
  return largest;
}

// Of a number that is rounded to the format.
uint8_t code_of(float x, const Format& format) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof bits);
  const auto sign = static_cast<uint8_t>(bits >> 31 << 7);
  if (x != x) return sign | 0x7f;
  const int32_t exponent = static_cast<int32_t>(bits >> 23 & 0xff) - 127;
  // Below the lowest exponent codes count steps.
  if (exponent < format.lowest_exponent)
    return sign | static_cast<uint8_t>(__builtin_fabsf(x) * static_cast<float>(1 << (format.mantissa_bits - format.lowest_exponent)));
  return sign | static_cast<uint8_t>((exponent + format.bias()) << format.mantissa_bits | (bits & 0x7fffff) >> (23 - format.mantissa_bits));
}

template <class T>
void codes_of_row(const Fp8CodesProblem& p, const Format& format, int64_t row) {
  const T* x = static_cast<const T*>(p.x) + row * p.width;
  const Int exponent = scale_exponent(broadcast(*p.largest), format);
  const Float inverse = power_of_two(-exponent);
  if (row == 0) *p.scale = power_of_two(exponent)[0];
  float numbers[kLanes];
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int64_t n = smaller(kLanes, p.width - i);
    store(numbers, rounded(load_some(x + i, n) * inverse, format));
    for (int64_t k = 0; k < n; ++k) p.codes[p.is_transposed ? (i + k) * p.rows + row : row * p.width + i + k] = code_of(numbers[k], format);
  }
}

}  // namespace

void fp8_codes(const Fp8CodesProblem& p, int64_t begin, int64_t end) {
  const auto& format = p.is_e5m2 ? kE5m2 : kE4m3;
  for (int64_t row = begin; row < end; ++row) p.is_bf16 ? codes_of_row<bf16>(p, format, row) : codes_of_row<float>(p, format, row);
}

void largest_magnitude(const LargestProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    p.largest[row] = p.is_bf16 ? largest_of(static_cast<const bf16*>(p.x) + row * p.width, p.width)
                               : largest_of(static_cast<const float*>(p.x) + row * p.width, p.width);
}

void round_to_fp8(const Fp8Problem& p, int64_t begin, int64_t end) {
  const auto& format = p.is_e5m2 ? kE5m2 : kE4m3;
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * p.tile_rows, last = smaller(first + p.tile_rows, p.height);
    for (int64_t from = 0; from < p.width; from += kColumns) {
      const int64_t width = smaller(kColumns, p.width - from);
      p.is_bf16 ? round_tiles<bf16>(p, format, first, last, from, width) : round_tiles<float>(p, format, first, last, from, width);
    }
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
