// Rounding to what FP8 or FP4 holds.
#include "kernels/cpu/rows_fp8.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

constexpr int64_t kColumns = 1024;  // at a time; whole tiles

struct Format {
  int32_t largest_exponent, lowest_exponent, mantissa_bits;
  int32_t bias() const { return 1 - lowest_exponent; }
};
constexpr Format kE4m3{8, -6, 3}, kE5m2{15, -14, 2}, kE2m1{2, 0, 1};
constexpr int32_t kFractionOfLargest = 0x600000;  // of FP8: both end at 1.75 times a power of two
constexpr float kLargestE2m1 = 6;
constexpr int32_t kExponentOfNvfp4 = 11, kFractionOfNvfp4 = 0x280000;  // 6 times 448

INGOT_INLINE Float power_of_two(Int exponent) { return reinterpret_cast<Float>((exponent + 127) << 23); }
INGOT_INLINE Float magnitude(Float x) { return reinterpret_cast<Float>(reinterpret_cast<Int>(x) & 0x7fffffff); }

// The exponent of the smallest power of two whose multiples reach `largest`, where numbers end at 2^end (1 + fraction / 2^23).
INGOT_INLINE Int scale_exponent(Float largest, int32_t end, int32_t fraction = kFractionOfLargest) {
  const Int bits = reinterpret_cast<Int>(largest);
  const Int exponent = (bits >> 23) - 127 - end - ((bits & 0x7fffff) > fraction);  // true is -1
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

// The largest magnitude of each column of a tile, or of all columns of it.
template <class T>
void find_largest(const T* x, int64_t stride, int64_t rows, int64_t width, int64_t tile_columns, float* largest) {
  for (int64_t i = 0; i < width; ++i) largest[i] = 0;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t i = 0; i < width; i += kLanes) {
      const int64_t n = width - i;
      const Float before = load_some(largest + i, n), here = magnitude(load_some(x + row * stride + i, n));
      store_some(largest + i, here > before ? here : before, n);
    }
  spread_over_tiles(largest, width, tile_columns);
}

template <class T>
void round_tiles(const Fp8Problem& p, const Format& format, int64_t first, int64_t last, int64_t from, int64_t width) {
  float largest[kColumns];
  const T* x = static_cast<const T*>(p.x) + from;
  T* out = static_cast<T*>(p.out) + from;
  if (!p.largest) find_largest(x + first * p.width, p.width, last - first, width, p.tile_columns, largest);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    const Int exponent = scale_exponent(p.largest ? broadcast(*p.largest) : load_some(largest + i, n), format.largest_exponent);
    const Float scale = power_of_two(exponent), inverse = power_of_two(-exponent);
    for (int64_t row = first; row < last; ++row)
      store_some(out + row * p.width + i, rounded(load_some(x + row * p.width + i, n) * inverse, format) * scale, n);
  }
}

// From 0 on, below 1: a hash of the element's place and bits.
INGOT_INLINE Float chance(Float x, Bits place) {
  Bits h = reinterpret_cast<Bits>(x) * 0x9e3779b1u + place * 0x85ebca77u;
  h ^= h >> 16;
  h *= 0x7feb352du;
  h ^= h >> 15;
  h *= 0x846ca68bu;
  h ^= h >> 16;
  return __builtin_convertvector(reinterpret_cast<Int>(h >> 8), Float) * 0x1p-24f;
}

// q >= 0 to one of its two neighbours in e2m1.
INGOT_INLINE Float rounded_by_chance(Float q, Float chance) {
  const Float step = q < 2 ? broadcast(0.5f) : q < 4 ? broadcast(1.0f) : broadcast(2.0f);
  const Float inverse = q < 2 ? broadcast(2.0f) : q < 4 ? broadcast(1.0f) : broadcast(0.5f);
  return __builtin_convertvector(__builtin_convertvector(q * inverse + chance, Int), Float) * step;
}

template <class T, class Out>
void round_tiles_to_nvfp4(const Fp4Problem& p, int64_t first, int64_t last, int64_t from, int64_t width) {
  float largest[kColumns];
  const T* x = static_cast<const T*>(p.x) + from;
  Out* out = static_cast<Out*>(p.out) + from;
  find_largest(x + first * p.width, p.width, last - first, width, p.tile_columns, largest);
  const Int exponent = scale_exponent(broadcast(*p.largest), kExponentOfNvfp4, kFractionOfNvfp4);
  const Float outer = power_of_two(exponent), inverse = power_of_two(-exponent);
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    const Float scale = rounded(load_some(largest + i, n) / kLargestE2m1 * inverse, kE4m3) * outer;
    for (int64_t row = first; row < last; ++row) {
      const Float value = load_some(x + row * p.width + i, n);
      const Float quotient = scale == 0 ? Float{} : min(magnitude(value) / scale, broadcast(kLargestE2m1));
      const auto place = static_cast<uint32_t>(row * p.width + from + i);
      const Float number = p.is_stochastic ? rounded_by_chance(quotient, chance(value, reinterpret_cast<Bits>(lane_index()) + place))
                                           : rounded(quotient, kE2m1);
      const Float with_sign =
          reinterpret_cast<Float>(reinterpret_cast<Bits>(number * scale) | (reinterpret_cast<Bits>(value) & 0x80000000));
      store_some(out + row * p.width + i, with_sign * (value - value + 1), n);  // NaN of what is not finite
    }
  }
}

float scale_of(float largest, const Format& format) { return power_of_two(scale_exponent(broadcast(largest), format.largest_exponent))[0]; }

int64_t places_of(int64_t rows) { return rows == 0 ? kPlacesOfGroups : (rows + kPlacesOfGroups - 1) / kPlacesOfGroups * kPlacesOfGroups; }

// Of one group: its rows [from, end), those that take part in its scale [from, last).
struct RowsOfGroup {
  const Fp8GroupsProblem& p;
  int64_t from, end, last;

  RowsOfGroup(const Fp8GroupsProblem& p, int64_t group)
      : p(p), from(group == 0 ? 0 : p.ends[group - 1]), end(p.ends[group]), last(group == p.rows - 1 ? p.all_rows : end) {}
  bool counts(int64_t row) const { return row < end && (!p.counts || p.counts[row] != 0); }

  void find_scales(int64_t group) const {
    float most[2] = {};
    for (int64_t row = from; row < last; ++row) {
      float& here = most[counts(row)];
      here = p.largest[row] > here ? p.largest[row] : here;
    }
    const float scale[2] = {scale_of(most[0], kE4m3), scale_of(most[1], kE4m3)};
    for (int64_t row = from; row < last; ++row) p.row_scale[row] = scale[counts(row)];
    p.group_scale[group] = scale[1];
  }
  void place(int64_t group, int64_t start) const {
    int64_t counted = 0;
    for (int64_t row = from; row < end; ++row) counted += counts(row);
    p.place_ends[group] = static_cast<int32_t>(start + places_of(counted));
    const int64_t stop = group == p.rows - 1 ? p.places : p.place_ends[group];
    for (int64_t place = start; place < stop; ++place)
      p.row_of_place[place] = place - start < counted ? static_cast<int32_t>(from + place - start) : -1;
  }
};

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
  const int64_t source = p.row_of_place ? p.row_of_place[row] : row;
  if (source < 0) {
    for (int64_t i = 0; i < p.width; ++i) p.codes[p.is_transposed ? i * p.rows + row : row * p.width + i] = 0;
    return;
  }
  const T* x = static_cast<const T*>(p.x) + source * p.width;
  const float scale = p.largest ? scale_of(*p.largest, format) : p.row_scale[source];
  const Float inverse = broadcast(1 / scale);
  if (p.largest && row == 0) *p.scale = scale;
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

void fp8_groups(const Fp8GroupsProblem& p, int64_t begin, int64_t end) {
  int64_t start = 0;  // of a group's places
  for (int64_t group = 0; group < begin; ++group) start += places_of(p.ends[group] - (group == 0 ? 0 : p.ends[group - 1]));
  for (int64_t group = begin; group < end; ++group) {
    const RowsOfGroup rows(p, group);
    if (p.largest) rows.find_scales(group);
    if (p.row_of_place) rows.place(group, start);
    start += places_of(rows.end - rows.from);
  }
}

void largest_magnitude(const LargestProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row)
    p.largest[row] = p.is_bf16 ? largest_of(static_cast<const bf16*>(p.x) + row * p.width, p.width)
                               : largest_of(static_cast<const float*>(p.x) + row * p.width, p.width);
}

void round_to_nvfp4(const Fp4Problem& p, int64_t begin, int64_t end) {
  for (int64_t tile = begin; tile < end; ++tile) {
    const int64_t first = tile * p.tile_rows, last = smaller(first + p.tile_rows, p.height);
    for (int64_t from = 0; from < p.width; from += kColumns) {
      const int64_t width = smaller(kColumns, p.width - from);
      if (!p.is_bf16 && p.is_out_bf16) round_tiles_to_nvfp4<float, bf16>(p, first, last, from, width);
      else
        p.is_bf16 ? round_tiles_to_nvfp4<bf16, bf16>(p, first, last, from, width)
                  : round_tiles_to_nvfp4<float, float>(p, first, last, from, width);
    }
  }
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
