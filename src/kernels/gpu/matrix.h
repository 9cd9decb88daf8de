// What a wave multiplies at once: matrices of 16 x 16 of bf16, summed in fp32. NVIDIA's warps take two mma.m16n8k16 and load with ldmatrix,
// AMD's waves take one MFMA of 16x16x16; the host goes through the same instructions, which it computes from the registers of all threads
// of the wave by the layouts that the vendors document (PTX ISA, "Matrix Fragments for mma.m16n8k16" and "ldmatrix"; AMD matrix
// instruction calculator, v_mfma_f32_16x16x16_bf16). All threads of a wave come to multiply() and to loads, at the same place of the
// source.
#pragma once

#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

INGOT_DEVICE int wave_index() { return static_cast<int>(static_cast<unsigned>(thread_index()) / kWave); }
INGOT_DEVICE int wave_thread() { return static_cast<int>(static_cast<unsigned>(thread_index()) % kWave); }

constexpr int kMatrix = 16;                                 // rows and columns
constexpr int kMatrixOfThread = kMatrix * kMatrix / kWave;  // elements of a matrix that a thread holds
constexpr int kThreadsOfMatrixRow = kWave == 32 ? 4 : 16;   // neighbours that hold a row of sums
constexpr int kMatrixRowsOfThread = kWave == 32 ? 2 : 4;    // rows of which it holds sums

/// Where element (row, column) lies behind the address of (0, 0): row * step + column, or column * step + row.
enum class Order { by_row, by_column };

struct MatrixOperand {
  uint32_t pairs[kMatrixOfThread / 2];  // of bf16, the first in the lower half
};

struct MatrixSum {
  float at[kMatrixOfThread];

  /// Of a thread's element i. Its elements of a row are neighbours, as are its rows.
#if INGOT_WAVE == 32
  static INGOT_DEVICE int row(int i) { return wave_thread() / 4 + (i / 2 % 2) * 8; }
  static INGOT_DEVICE int column(int i) { return wave_thread() % 4 * 2 + i % 2 + i / 4 * 8; }
  static constexpr INGOT_DEVICE int row_of_thread(int i) { return i / 2 % 2; }  // which of the rows that it has
#else
  static INGOT_DEVICE int row(int i) { return wave_thread() / 16 * 4 + i; }
  static INGOT_DEVICE int column(int) { return wave_thread() % 16; }
  static constexpr INGOT_DEVICE int row_of_thread(int i) { return i; }
#endif
};

INGOT_DEVICE uint32_t pair_of(Bf16 first, Bf16 second) { return first.bits | static_cast<uint32_t>(second.bits) << 16; }
INGOT_DEVICE Bf16 element_of(const uint32_t* pairs, int i) { return {static_cast<uint16_t>(pairs[i / 2] >> (i % 2 * 16))}; }

// -- the instructions

#if INGOT_WAVE == 32
#if defined(__CUDACC__)
/// Four matrices of 8 x 8, whose rows of 16 bytes threads 8 m to 8 m + 7 address; to every thread two elements of a row of each, or of a
/// column.
template <bool is_transposed>
INGOT_DEVICE void load_matrices(const Bf16* row, uint32_t (&to)[4]) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  if constexpr (is_transposed)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(address)
                 : "memory");
}
/// sums [16, 8] += a [16, 16] b [16, 8].
INGOT_DEVICE void multiply_m16n8k16(float* sums, const uint32_t* a, const uint32_t* b) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#else
template <bool is_transposed>
INGOT_DEVICE void load_matrices(const Bf16* row, uint32_t (&to)[4], int line = __builtin_LINE()) {
  host::exchange(&row, sizeof row, kWave, line);
  const int own = wave_thread() / 4, pair = wave_thread() % 4 * 2;
  const auto at = [](int of_matrix, int row_of_it) {
    return *static_cast<const Bf16* const*>(host::published_by(8 * of_matrix + row_of_it, kWave));
  };
  for (int m = 0; m < 4; ++m)
    to[m] = is_transposed ? pair_of(at(m, pair)[own], at(m, pair + 1)[own]) : pair_of(at(m, own)[pair], at(m, own)[pair + 1]);
}
INGOT_DEVICE void multiply_m16n8k16(float* sums, const uint32_t* a, const uint32_t* b, int line = __builtin_LINE()) {
  const uint32_t own[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  host::exchange(own, sizeof own, kWave, line);
  host::pass_matrices();
  for (int i = 0; i < 4; ++i) {
    const int row = wave_thread() / 4 + i / 2 * 8, column = wave_thread() % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      // Threads 4 g to 4 g + 3 have rows g and g + 8 of a, and column g of b; thread t of them elements 2 t, 2 t + 1, 2 t + 8, 2 t + 9.
      const auto* const left = static_cast<const uint32_t*>(host::published_by(row % 8 * 4 + k % 8 / 2, kWave));
      const auto* const right = static_cast<const uint32_t*>(host::published_by(column * 4 + k % 8 / 2, kWave)) + 4;
      sums[i] += to_float(element_of(left, k / 8 * 4 + row / 8 * 2 + k % 2)) * to_float(element_of(right, k / 8 * 2 + k % 2));
    }
  }
}
#endif

/// a or b of multiply(), in shared memory; `from` and step a multiple of 8 elements.
template <Order order>
INGOT_DEVICE MatrixOperand load_left(const Bf16* from, int step) {
  const int own = wave_thread() % 8, second = wave_thread() / 8 % 2 * 8, third = wave_thread() / 16 * 8;
  MatrixOperand out;
  if constexpr (order == Order::by_row) load_matrices<false>(from + (second + own) * step + third, out.pairs);
  else load_matrices<true>(from + (third + own) * step + second, out.pairs);
  return out;
}
template <Order order>
INGOT_DEVICE MatrixOperand load_right(const Bf16* from, int step) {
  const int own = wave_thread() % 8, second = wave_thread() / 8 % 2 * 8, third = wave_thread() / 16 * 8;
  MatrixOperand out;
  if constexpr (order == Order::by_row) load_matrices<true>(from + (second + own) * step + third, out.pairs);
  else load_matrices<false>(from + (third + own) * step + second, out.pairs);
  return out;
}
/// sums += a b.
INGOT_DEVICE void multiply(MatrixSum& sums, const MatrixOperand& a, const MatrixOperand& b) {
  multiply_m16n8k16(sums.at, a.pairs, b.pairs);
  multiply_m16n8k16(sums.at + 4, a.pairs, b.pairs + 2);
}
#else
#if defined(__HIPCC__)
INGOT_DEVICE void multiply_16x16x16(float* sums, const uint32_t* a, const uint32_t* b) {
  using Four = short __attribute__((ext_vector_type(4)));
  using Sums = float __attribute__((ext_vector_type(4)));
  Four left, right;
  __builtin_memcpy(&left, a, sizeof left);
  __builtin_memcpy(&right, b, sizeof right);
  Sums out = {sums[0], sums[1], sums[2], sums[3]};
#if defined(__HIP_DEVICE_COMPILE__)
  out = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(left, right, out, 0, 0, 0);
#endif
  for (int i = 0; i < 4; ++i) sums[i] = out[i];
}
#else
INGOT_DEVICE void multiply_16x16x16(float* sums, const uint32_t* a, const uint32_t* b, int line = __builtin_LINE()) {
  const uint32_t own[4] = {a[0], a[1], b[0], b[1]};
  host::exchange(own, sizeof own, kWave, line);
  host::pass_matrices();
  for (int i = 0; i < 4; ++i)
    for (int k = 0; k < 16; ++k) {
      // Thread 16 g + r has elements 4 g to 4 g + 3 of row r of a, and of column r of b.
      const int row = wave_thread() / 16 * 4 + i, column = wave_thread() % 16;
      const auto* const left = static_cast<const uint32_t*>(host::published_by(k / 4 * 16 + row, kWave));
      const auto* const right = static_cast<const uint32_t*>(host::published_by(k / 4 * 16 + column, kWave)) + 2;
      sums[i] += to_float(element_of(left, k % 4)) * to_float(element_of(right, k % 4));
    }
}
#endif

/// Four elements in a line that are `step` apart, or neighbours.
template <bool are_neighbours>
INGOT_DEVICE MatrixOperand load_four(const Bf16* from, int step) {
  Vector<Bf16, 4> four;
  if constexpr (are_neighbours) four = *reinterpret_cast<const Vector<Bf16, 4>*>(from);
  else
    for (int i = 0; i < 4; ++i) four.at[i] = from[i * step];
  return {{pair_of(four.at[0], four.at[1]), pair_of(four.at[2], four.at[3])}};
}
template <Order order>
INGOT_DEVICE MatrixOperand load_left(const Bf16* from, int step) {
  const int row = wave_thread() % 16, k = wave_thread() / 16 * 4;
  return load_four<order == Order::by_row>(from + (order == Order::by_row ? row * step + k : k * step + row), step);
}
template <Order order>
INGOT_DEVICE MatrixOperand load_right(const Bf16* from, int step) {
  const int column = wave_thread() % 16, k = wave_thread() / 16 * 4;
  return load_four<order == Order::by_column>(from + (order == Order::by_row ? k * step + column : column * step + k), step);
}
INGOT_DEVICE void multiply(MatrixSum& sums, const MatrixOperand& a, const MatrixOperand& b) {
  multiply_16x16x16(sums.at, a.pairs, b.pairs);
}
#endif

/// Of a left operand the elements of which keeps(row, column) is true, 0 in the place of the others.
template <class Keeps>
INGOT_DEVICE MatrixOperand keep_of_left(MatrixOperand a, const Keeps& keeps) {
  INGOT_UNROLL
  for (int i = 0; i < kMatrixOfThread; ++i) {
#if INGOT_WAVE == 32
    const int row = wave_thread() / 4 + i / 2 % 2 * 8, column = wave_thread() % 4 * 2 + i % 2 + i / 4 * 8;
#else
    const int row = wave_thread() % 16, column = wave_thread() / 16 * 4 + i;
#endif
    if (!keeps(row, column)) a.pairs[i / 2] &= i % 2 == 0 ? 0xffff0000u : 0x0000ffffu;
  }
  return a;
}
/// A left operand of ones.
INGOT_DEVICE MatrixOperand ones_of_left() {
  MatrixOperand a;
  for (int i = 0; i < kMatrixOfThread / 2; ++i) a.pairs[i] = 0x3f803f80u;
  return a;
}

/// Sums over the columns, of a number for a row: the same on all threads that have the row.
INGOT_DEVICE float sum_over_columns(float value) {
  for (int mask = 1; mask < kThreadsOfMatrixRow; mask *= 2) value += shuffle_xor(value, mask);
  return value;
}

/// In bf16; elements outside of `rows` and `columns` are left out. Columns and step even, `to` of 4 bytes.
INGOT_DEVICE void store(const MatrixSum& sums, Bf16* to, int64_t step, int rows = kMatrix, int columns = kMatrix) {
#if INGOT_WAVE == 32
  INGOT_UNROLL
  for (int i = 0; i < kMatrixOfThread; i += 2) {
    Vector<Bf16, 2> two;
    from_float(sums.at[i], two.at[0]);
    from_float(sums.at[i + 1], two.at[1]);
    if (MatrixSum::row(i) < rows && MatrixSum::column(i) < columns)
      *reinterpret_cast<Vector<Bf16, 2>*>(to + MatrixSum::row(i) * step + MatrixSum::column(i)) = two;
  }
#else
  INGOT_UNROLL
  for (int i = 0; i < kMatrixOfThread; ++i)
    if (MatrixSum::row(i) < rows && MatrixSum::column(i) < columns)
      from_float(sums.at[i], to[MatrixSum::row(i) * step + MatrixSum::column(i)]);
#endif
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
