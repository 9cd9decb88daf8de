// Rounding to what FP8 holds on a GPU: cpu/rows_fp8.h has the problem. Bound by memory: tiles of a row are read once, others a second time
// from a cache.
#pragma once

#include "kernels/cpu/rows_fp8.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// A format's powers of two, and the factor by which a number's power of two becomes 1.5 x 2^23 of its last places.
struct Fp8Grid {
  int largest_exponent;
  float lowest, shift;
  static INGOT_DEVICE Fp8Grid of(bool is_e5m2) {
    return is_e5m2 ? Fp8Grid{15, 0x1p-14f, 1.5f * 0x1p21f} : Fp8Grid{8, 0x1p-6f, 1.5f * 0x1p20f};
  }
};

INGOT_DEVICE float magnitude(float x) { return float_of(bits_of(x) & 0x7fffffffu); }

/// x times the inverse of the scale that `largest` has, rounded, times the scale.
struct Fp8Rounding {
  Fp8Grid grid;
  float scale, inverse;

  static INGOT_DEVICE Fp8Rounding of(float largest, const Fp8Grid& grid) {
    const uint32_t bits = bits_of(largest);
    int exponent = static_cast<int>(bits >> 23) - 127 - grid.largest_exponent + ((bits & 0x7fffffu) > 0x600000u ? 1 : 0);
    exponent = exponent < -100 ? -100 : exponent > 100 ? 100 : exponent;
    return {grid, float_of(static_cast<uint32_t>(127 + exponent) << 23), float_of(static_cast<uint32_t>(127 - exponent) << 23)};
  }
  static INGOT_DEVICE Fp8Rounding with(float scale, const Fp8Grid& grid) { return {grid, scale, float_of((254u << 23) - bits_of(scale))}; }
  /// In units of the scale.
  INGOT_DEVICE float number(float value) const {
    const float x = value * inverse, power = float_of(bits_of(x) & 0x7f800000u);
    const float shift = (power < grid.lowest ? grid.lowest : power) * grid.shift;
    return float_of(bits_of((x + shift) - shift) | (bits_of(x) & 0x80000000u));  // zeros keep their sign
  }
  INGOT_DEVICE float operator()(float value) const { return number(value) * scale; }
};

template <class T, int count>
struct Fp8Vectors {
  using V = Vector<T, count>;
  static INGOT_DEVICE float largest(const V& x) {
    float most = 0;
    for (int k = 0; k < count; ++k) most = Max::of(most, magnitude(to_float(x.at[k])));
    return most;
  }
  static INGOT_DEVICE V rounded(const V& x, const Fp8Rounding& rounding) {
    V out;
    for (int k = 0; k < count; ++k) from_float(rounding(to_float(x.at[k])), out.at[k]);
    return out;
  }
};

/// Tiles of a row, and all of x with its largest magnitude given: a thread a vector. The threads of a tile are neighbours in a wave.
template <class T, int count>
struct Fp8Across {
  using Vectors = Fp8Vectors<T, count>;
  using V = typename Vectors::V;

  static INGOT_DEVICE void run(const cpu::Fp8Problem& p) {
    const auto grid = Fp8Grid::of(p.is_e5m2);
    const int64_t tile = p.largest != nullptr ? count : p.tile_columns, per_tile = quotient(tile, count);
    const int64_t per_row = quotient(p.width + tile - 1, tile) * per_tile, in_row = quotient(p.width, count), all = p.height * per_row;
    const int64_t step = grid_blocks() * block_threads();
    for (int64_t first = block_index() * block_threads(); first < all; first += step) {
      const int64_t i = first + thread_index(), row = quotient(i, per_row), column = remainder(i, per_row);
      const bool is_there = i < all && column < in_row;
      const int64_t at = row * in_row + column;
      V x{};
      if (is_there) x = static_cast<const V*>(p.x)[at];
      float most = p.largest != nullptr ? *p.largest : Vectors::largest(x);
      for (int mask = 1; mask < per_tile; mask *= 2) most = Max::of(most, shuffle_xor(most, mask));
      if (is_there) static_cast<V*>(p.out)[at] = Vectors::rounded(x, Fp8Rounding::of(most, grid));
    }
  }
};

/// Tiles of columns: a thread as many columns as a vector has.
template <class T, int count>
struct Fp8Down {
  static constexpr int kThreads = 256;
  using Vectors = Fp8Vectors<T, count>;
  using V = typename Vectors::V;

  static INGOT_DEVICE void run(const cpu::Fp8Problem& p) {
    const auto grid = Fp8Grid::of(p.is_e5m2);
    const int64_t in_row = quotient(p.width, count), all = p.rows * in_row;
    for (int64_t i = block_index() * block_threads() + thread_index(); i < all; i += grid_blocks() * block_threads()) {
      const int64_t from = quotient(i, in_row) * p.tile_rows, left = p.height - from, rows = left < p.tile_rows ? left : p.tile_rows;
      const V* const x = static_cast<const V*>(p.x) + from * in_row + remainder(i, in_row);
      V* const out = static_cast<V*>(p.out) + from * in_row + remainder(i, in_row);
      float most[count] = {};
      for (int64_t row = 0; row < rows; ++row) {
        const V one = x[row * in_row];
        for (int k = 0; k < count; ++k) most[k] = Max::of(most[k], magnitude(to_float(one.at[k])));
      }
      Fp8Rounding rounding[count];
      for (int k = 0; k < count; ++k) rounding[k] = Fp8Rounding::of(most[k], grid);
      for (int64_t row = 0; row < rows; ++row) {
        V one = x[row * in_row];
        for (int k = 0; k < count; ++k) from_float(rounding[k](to_float(one.at[k])), one.at[k]);
        out[row * in_row] = one;
      }
    }
  }
};

/// Tiles of rows and columns, and those of a row that a wave is too small for: a block a tile.
template <class T, int count>
struct Fp8Square {
  using Vectors = Fp8Vectors<T, count>;
  using V = typename Vectors::V;

  static INGOT_DEVICE void run(const cpu::Fp8Problem& p) {
    const auto grid = Fp8Grid::of(p.is_e5m2);
    const int64_t in_row = quotient(p.width, count), across = quotient(p.width + p.tile_columns - 1, p.tile_columns);
    const int64_t per_tile = quotient(p.tile_columns, count), step = quotient(block_threads(), per_tile);
    for (int64_t tile = block_index(); tile < p.rows * across; tile += grid_blocks()) {
      const int64_t from = quotient(tile, across) * p.tile_rows, end = from + p.tile_rows < p.height ? from + p.tile_rows : p.height;
      const int64_t column = remainder(tile, across) * per_tile + remainder(thread_index(), per_tile);
      const int64_t first = column < in_row ? from + quotient(thread_index(), per_tile) : end;
      const V* const x = static_cast<const V*>(p.x) + column;
      float most = 0;
      for (int64_t row = first; row < end; row += step) most = Max::of(most, Vectors::largest(x[row * in_row]));
      const auto rounding = Fp8Rounding::of(block_max(most), grid);
      for (int64_t row = first; row < end; row += step)
        static_cast<V*>(p.out)[row * in_row + column] = Vectors::rounded(x[row * in_row], rounding);
    }
  }
};

/// A block a row.
template <class T, int count>
struct LargestMagnitude {
  static INGOT_DEVICE void run(const cpu::LargestProblem& p) {
    using V = Vector<T, count>;
    const int64_t in_row = quotient(p.width, count);
    for (int64_t row = block_index(); row < p.rows; row += grid_blocks()) {
      float most = 0;
      for (int64_t i = thread_index(); i < in_row; i += block_threads())
        most = Max::of(most, Fp8Vectors<T, count>::largest(static_cast<const V*>(p.x)[row * in_row + i]));
      most = block_max(most);
      if (thread_index() == 0) p.largest[row] = most;
    }
  }
};

template <class Launcher>
auto largest_magnitude(const cpu::LargestProblem& p, const Launcher& launcher) {
  const auto with = [&]<class T, int count>(Vector<T, count>) { return launcher.template run<LargestMagnitude<T, count>>(p.rows, 256, p); };
  if (p.is_bf16) return is_aligned(p.x) && p.width % 8 == 0 ? with(Vector<Bf16, 8>{}) : with(Vector<Bf16, 1>{});
  return is_aligned(p.x) && p.width % 4 == 0 ? with(Vector<float, 4>{}) : with(Vector<float, 1>{});
}

/// Of a number that is rounded to its format: below the lowest power of two codes count steps.
template <bool is_e5m2>
INGOT_DEVICE uint8_t fp8_code(float x) {
  constexpr int kMantissa = is_e5m2 ? 2 : 3, kLowest = is_e5m2 ? -14 : -6;
  const uint32_t bits = bits_of(x), sign = bits >> 31 << 7;
  const int exponent = static_cast<int>(bits >> 23 & 0xffu) - 127;
  uint32_t code = 0;
  if (x != x) code = 0x7f;
  else if (exponent < kLowest) code = static_cast<uint32_t>(magnitude(x) * static_cast<float>(1 << (kMantissa - kLowest)));
  else code = static_cast<uint32_t>(exponent + 1 - kLowest) << kMantissa | (bits & 0x7fffffu) >> (23 - kMantissa);
  return static_cast<uint8_t>(sign | code);
}

/// A thread a vector, in a loop over the grid.
template <class T, int count, bool is_e5m2>
struct Fp8Codes {
  static INGOT_DEVICE void run(const cpu::Fp8CodesProblem& p) {
    using V = Vector<T, count>;
    const auto grid = Fp8Grid::of(is_e5m2);
    auto rounding = Fp8Rounding::of(p.largest != nullptr ? *p.largest : 0.0f, grid);
    if (p.largest != nullptr && block_index() == 0 && thread_index() == 0) *p.scale = rounding.scale;
    const int64_t in_row = quotient(p.width, count), vectors = p.rows * in_row;
    for (int64_t i = block_index() * block_threads() + thread_index(); i < vectors; i += grid_blocks() * block_threads()) {
      const V x = static_cast<const V*>(p.x)[i];
      if (p.largest == nullptr) rounding = Fp8Rounding::with(p.row_scale[quotient(i, in_row)], grid);
      Vector<uint8_t, count> codes;
      for (int k = 0; k < count; ++k) codes.at[k] = fp8_code<is_e5m2>(rounding.number(to_float(x.at[k])));
      reinterpret_cast<Vector<uint8_t, count>*>(p.codes)[i] = codes;
    }
  }
};

/// A block a square that it turns in shared memory, so that both sides are read and written in runs. Sides are multiples of 16.
template <class T, bool is_e5m2>
struct Fp8CodesTransposed {
  static constexpr int kThreads = 256, kSide = 64, kPitch = kSide + 1;  // odd, so that columns lie in different banks
  static constexpr int kRead = 16 / sizeof(T), kWrite = 16;

  static INGOT_DEVICE void run(const cpu::Fp8CodesProblem& p) {
    using V = Vector<T, kRead>;
    INGOT_SHARED_FLOATS(square, kSide * kPitch);
    const auto grid = Fp8Grid::of(is_e5m2);
    auto rounding = Fp8Rounding::of(p.largest != nullptr ? *p.largest : 0.0f, grid);
    if (p.largest != nullptr && block_index() == 0 && thread_index() == 0) *p.scale = rounding.scale;
    const int64_t across = quotient(p.width + kSide - 1, kSide), squares = quotient(p.rows + kSide - 1, kSide) * across;
    for (int64_t at = block_index(); at < squares; at += grid_blocks()) {
      const int64_t row = quotient(at, across) * kSide, column = remainder(at, across) * kSide;
      for (int i = thread_index(); i < kSide * kSide / kRead; i += block_threads()) {
        const int r = i / (kSide / kRead), c = i % (kSide / kRead) * kRead;
        if (row + r >= p.rows || column + c >= p.width) continue;
        const int64_t source = p.row_of_place != nullptr ? p.row_of_place[row + r] : row + r;
        V x{};
        if (source >= 0) {
          x = static_cast<const V*>(p.x)[quotient(source * p.width + column + c, kRead)];
          if (p.largest == nullptr) rounding = Fp8Rounding::with(p.row_scale[source], grid);
        }
        for (int k = 0; k < kRead; ++k) square[r * kPitch + c + k] = rounding.number(to_float(x.at[k]));
      }
      barrier();
      for (int i = thread_index(); i < kSide * kSide / kWrite; i += block_threads()) {
        const int c = i / (kSide / kWrite), r = i % (kSide / kWrite) * kWrite;
        if (row + r >= p.rows || column + c >= p.width) continue;
        Vector<uint8_t, kWrite> codes;
        for (int k = 0; k < kWrite; ++k) codes.at[k] = fp8_code<is_e5m2>(square[(r + k) * kPitch + c]);
        reinterpret_cast<Vector<uint8_t, kWrite>*>(p.codes)[quotient((column + c) * p.rows + row + r, kWrite)] = codes;
      }
      barrier();
    }
  }
};

/// x and codes begin at multiples of 16 bytes; the width is a multiple of 16, and so are the rows of what is transposed.
template <class Launcher>
auto fp8_codes(const cpu::Fp8CodesProblem& p, const Launcher& launcher) {
  const auto with = [&]<class T, int is_e5m2>(T, Constant<is_e5m2>) {
    using Transposed = Fp8CodesTransposed<T, is_e5m2 == 1>;
    constexpr int kThreads = 256, kRead = 16 / sizeof(T), kSide = Transposed::kSide;
    if (p.is_transposed)
      return launcher.template run<Transposed>((p.rows + kSide - 1) / kSide * ((p.width + kSide - 1) / kSide), kThreads, p);
    return launcher.template run<Fp8Codes<T, kRead, is_e5m2 == 1>>((p.rows * (p.width / kRead) + kThreads - 1) / kThreads, kThreads, p);
  };
  const auto in = [&](auto x) { return p.is_e5m2 ? with(x, Constant<1>{}) : with(x, Constant<0>{}); };
  return p.is_bf16 ? in(Bf16{}) : in(0.0f);
}

/// A block a group. Sums of shared memory are of fp32, in which numbers of rows and multiples of 16 below 2^28 are exact.
struct Fp8Groups {
  static constexpr int kThreads = 256;

  static INGOT_DEVICE int64_t places_of(int64_t rows) {
    return rows == 0 ? cpu::kPlacesOfGroups : (rows + cpu::kPlacesOfGroups - 1) / cpu::kPlacesOfGroups * cpu::kPlacesOfGroups;
  }
  static INGOT_DEVICE int64_t first_row(const cpu::Fp8GroupsProblem& p, int64_t group) { return group == 0 ? 0 : p.ends[group - 1]; }

  struct Rows {
    int64_t from, end, last;  // [from, end) are the group's; those up to `last` get a scale here
    const float* counted;
    INGOT_DEVICE bool counts(int64_t row) const { return row < end && (counted == nullptr || counted[row] != 0); }
  };

  static INGOT_DEVICE void find_scales(const cpu::Fp8GroupsProblem& p, int64_t group, const Rows& rows) {
    float most = 0, others = 0;
    for (int64_t row = rows.from + thread_index(); row < rows.last; row += block_threads()) {
      if (rows.counts(row)) most = Max::of(most, p.largest[row]);
      else others = Max::of(others, p.largest[row]);
    }
    const auto grid = Fp8Grid::of(false);
    const float scale = Fp8Rounding::of(block_max(most), grid).scale, of_others = Fp8Rounding::of(block_max(others), grid).scale;
    for (int64_t row = rows.from + thread_index(); row < rows.last; row += block_threads())
      p.row_scale[row] = rows.counts(row) ? scale : of_others;
    if (thread_index() == 0) p.group_scale[group] = scale;
  }

  static INGOT_DEVICE void place(const cpu::Fp8GroupsProblem& p, int64_t group, const Rows& rows) {
    float before = 0, counted = 0;
    for (int64_t earlier = thread_index(); earlier < group; earlier += block_threads())
      before += static_cast<float>(places_of(p.ends[earlier] - first_row(p, earlier)));
    for (int64_t row = rows.from + thread_index(); row < rows.end; row += block_threads()) counted += rows.counts(row) ? 1.0f : 0.0f;
    const auto start = static_cast<int64_t>(block_sum(before)), count = static_cast<int64_t>(block_sum(counted));
    const int64_t end = start + places_of(count), stop = group == p.rows - 1 ? p.places : end;
    for (int64_t place = start + thread_index(); place < stop; place += block_threads())
      p.row_of_place[place] = place - start < count ? static_cast<int32_t>(rows.from + place - start) : -1;
    if (thread_index() == 0) p.place_ends[group] = static_cast<int32_t>(end);
  }

  static INGOT_DEVICE void run(const cpu::Fp8GroupsProblem& p) {
    for (int64_t group = block_index(); group < p.rows; group += grid_blocks()) {
      const Rows rows{first_row(p, group), p.ends[group], group == p.rows - 1 ? p.all_rows : p.ends[group], p.counts};
      if (p.largest != nullptr) find_scales(p, group, rows);
      if (p.row_of_place != nullptr) place(p, group, rows);
    }
  }
};

template <class Launcher>
auto fp8_groups(const cpu::Fp8GroupsProblem& p, const Launcher& launcher) {
  return launcher.template run<Fp8Groups>(p.rows, Fp8Groups::kThreads, p);
}

/// Tiles are 1, 32 or 128 on a side; the widest vectors that fit.
template <class Launcher>
auto round_to_fp8(const cpu::Fp8Problem& p, const Launcher& launcher) {
  constexpr int kThreads = 256;
  const auto blocks_of = [](int64_t threads) { return (threads + kThreads - 1) / kThreads; };
  const auto with = [&]<class T, int count>(Vector<T, count>) {
    const int64_t across = (p.width + p.tile_columns - 1) / p.tile_columns;
    if (p.largest == nullptr && p.tile_columns > 1 && (p.tile_rows > 1 || p.tile_columns / count > kWave))
      return launcher.template run<Fp8Square<T, count>>(p.rows * across, kThreads, p);
    if (p.largest == nullptr && p.tile_rows > 1)
      return launcher.template run<Fp8Down<T, count>>(blocks_of(p.rows * (p.width / count)), kThreads, p);
    const int64_t in_row = p.largest != nullptr ? p.width : across * p.tile_columns;
    return launcher.template run<Fp8Across<T, count>>(blocks_of(p.height * (in_row / count)), kThreads, p);
  };
  const bool are_aligned = is_aligned(p.x) && is_aligned(p.out);
  if (p.is_bf16) return are_aligned && p.width % 8 == 0 ? with(Vector<Bf16, 8>{}) : with(Vector<Bf16, 1>{});
  return are_aligned && p.width % 4 == 0 ? with(Vector<float, 4>{}) : with(Vector<float, 1>{});
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
