// out = alpha p p^T + beta c on a GPU, in bf16 with sums in fp32 that are rounded once: symmetric_matmul_problem.h has the problem. A block
// computes a tile of 128 x 128 on or above the diagonal and writes it twice, the second time mirrored, both by rows: (1 + 128 / m) / 2 of a
// GEMM's FLOPs, and out[i][j] is out[j][i] to the bit, also in the diagonal's tiles.
//
// p comes in slabs of 32 columns. NVIDIA: two pairs of them in shared memory, cp.async fetches one while the other is multiplied. AMD: one
// pair, the next is on its way through registers, since a compute unit's 64 KiB would hold a single block with two. Of 256 threads a wave
// has 64 x 32 of the tile (waves of 32) or 64 x 64, a thread 64 sums. Two blocks fit on a multiprocessor (128 registers, 40 KiB each) and
// on a compute unit (199 vector registers, 20 KiB): a quarter of the threads.
//
// Not measured on a GPU. Bound by matrix instructions, or by what feeds them: a tile makes 64 FLOP of each byte from L2; with m = k = 2048
// it is 540 FLOP for each byte of memory, where H100 balances at 295 and MI300X at 247. On Hopper mma.sync reaches about two thirds of
// wgmma (arXiv 2402.13499, 2407.08608), which leaves at best three quarters of a GEMM's time; at that rate L2 would have to give 10 TB/s,
// and may be the bound. A larger tile has more sums than the quarter leaves registers for.
#pragma once

#include "kernels/gpu/matrix.h"
#include "kernels/gpu/symmetric_matmul_problem.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

struct SymmetricMatmul {
  static constexpr int kThreads = 256;
  static constexpr bool kFitsAQuarter = true;
  static constexpr int kSide = kSymmetricTile, kDepth = 32, kAtOnce = 8;
  static constexpr int kStep = kDepth + 8, kSlab = kSide * kStep;  // in shared memory: no two rows that are read at once meet in a bank
  static constexpr int kPairs = kWave == 32 ? 2 : 1;               // of slabs
  static constexpr int kRows = 64, kColumns = kSide * kSide / kRows * kWave / kThreads;  // of a wave
  static constexpr int kStrips = kRows / kMatrix, kSums = kColumns / kMatrix;
  static constexpr int kOutStep = kSide + 8;  // half a tile leaves at a time
  static_assert(kRows * kOutStep <= kPairs * 2 * kSlab);

  using Sums = MatrixSum[kStrips][kSums];
  using V = Vector<Bf16, kAtOnce>;

  // On or above the diagonal, row by row.
  struct Tile {
    int64_t row, column;

    INGOT_DEVICE Tile(int64_t index, int64_t tiles) : row(0) {
      for (; index >= tiles; --tiles, ++row) index -= tiles;
      column = row + index;
      row *= kSide, column *= kSide;
    }
    INGOT_DEVICE bool is_diagonal() const { return row == column; }
  };

  static INGOT_DEVICE int at_most(int64_t count, int most) { return count < most ? static_cast<int>(count) : most; }
  static INGOT_DEVICE Bf16* matrix(const MatrixRows& x, int64_t batch, int64_t row, int64_t column) {
    return reinterpret_cast<Bf16*>(x.data) + batch * x.batch_stride + row * x.row_stride + column;
  }

  // kSide rows of p and kDepth columns on their way to shared memory, from slab to slab.
  struct SlabOnItsWay {
    static constexpr int kVectors = kSide * kDepth / kAtOnce / kThreads, kApart = kSide / kVectors;
    VectorsOnTheirWay<kVectors> vectors;
    const Bf16* from;
    int rows;  // behind this thread's first

    static INGOT_DEVICE int row() { return thread_index() / (kDepth / kAtOnce); }
    static INGOT_DEVICE int column() { return thread_index() % (kDepth / kAtOnce) * kAtOnce; }
    INGOT_DEVICE SlabOnItsWay(const Bf16* first, int64_t step, int rows_) : from(first + row() * step + column()), rows(rows_ - row()) {}

    /// Zeros behind `columns`, which are left, and behind the rows.
    INGOT_DEVICE void start(Bf16* to, int64_t step, int columns) {
      const int left = columns - column() < 0 ? 0 : at_most(columns - column(), kAtOnce);
      INGOT_UNROLL
      for (int i = 0; i < kVectors; ++i) vectors.start(i, own(to, i), from + i * kApart * step, i * kApart < rows ? left : 0);
      from += kDepth;
    }
    INGOT_DEVICE void finish(Bf16* to) {
      INGOT_UNROLL
      for (int i = 0; i < kVectors; ++i) vectors.finish(i, own(to, i));
    }
    static INGOT_DEVICE Bf16* own(Bf16* to, int i) { return to + (row() + i * kApart) * kStep + column(); }
  };

  static INGOT_DEVICE void run(const SymmetricMatmulProblem& p) {
    INGOT_SHARED(Bf16, slabs, kPairs * 2 * kSlab);
    const int64_t tiles = quotient(p.m + kSide - 1, kSide), of_batch = tiles * (tiles + 1) / 2;
    const int64_t batch = quotient(block_index(), of_batch);
    const Tile tile(remainder(block_index(), of_batch), tiles);
    Sums sums{};
    multiply_rows(p, batch, tile, slabs, sums);
    barrier();  // before the tile comes where the slabs were
    add_and_write(p, batch, tile, slabs, sums);
    if (!tile.is_diagonal()) write_mirrored(p, batch, tile, slabs, sums);
  }

 private:
  static INGOT_DEVICE int wave_row() { return wave_index() / (kSide / kColumns) * kRows; }
  static INGOT_DEVICE int wave_column() { return wave_index() % (kSide / kColumns) * kColumns; }

  static INGOT_DEVICE void multiply_rows(const SymmetricMatmulProblem& p, int64_t batch, const Tile& tile, Bf16* slabs, Sums& sums) {
    const bool is_diagonal = tile.is_diagonal();  // both slabs are one
    const int k = static_cast<int>(p.k);
    SlabOnItsWay left(matrix(p.p, batch, tile.row, 0), p.p.row_stride, at_most(p.m - tile.row, kSide)),
        right(matrix(p.p, batch, tile.column, 0), p.p.row_stride, at_most(p.m - tile.column, kSide));
    const auto start = [&](Bf16* to, int columns) {
      left.start(to, p.p.row_stride, columns);
      if (!is_diagonal) right.start(to + kSlab, p.p.row_stride, columns);
    };
    Bf16 *slab = slabs, *next = slabs + (kPairs - 1) * 2 * kSlab;
    start(slab, k);
    INGOT_ROLLED
    for (int from = 0; from < k; from += kDepth) {
      if (kPairs == 1 && from > 0) barrier();  // before the next ones come there
      left.finish(slab);
      if (!is_diagonal) right.finish(slab + kSlab);
      barrier();
      if (from + kDepth < k) start(next, k - from - kDepth);
      multiply_slabs(slab, is_diagonal ? slab : slab + kSlab, sums);
      Bf16* const multiplied = slab;
      slab = next, next = multiplied;
    }
  }

  static INGOT_DEVICE void multiply_slabs(const Bf16* left, const Bf16* right, Sums& sums) {
    left += wave_row() * kStep;
    right += wave_column() * kStep;
    INGOT_UNROLL
    for (int k = 0; k < kDepth; k += kMatrix) {
      MatrixOperand of_right[kSums];
      INGOT_UNROLL
      for (int j = 0; j < kSums; ++j) of_right[j] = load_right<Order::by_column>(right + j * kMatrix * kStep + k, kStep);
      INGOT_UNROLL
      for (int i = 0; i < kStrips; ++i) {
        const auto of_left = load_left<Order::by_row>(left + i * kMatrix * kStep + k, kStep);
        INGOT_UNROLL
        for (int j = 0; j < kSums; ++j) multiply(sums[i][j], of_left, of_right[j]);
      }
    }
  }

  // Calls body(sum, row, column) for each of the wave, with the place of its first element in the tile.
  template <class Body>
  static INGOT_DEVICE void for_each_sum(Sums& sums, const Body& body) {
    INGOT_UNROLL
    for (int i = 0; i < kStrips; ++i) {
      INGOT_UNROLL
      for (int j = 0; j < kSums; ++j) body(sums[i][j], wave_row() + i * kMatrix, wave_column() + j * kMatrix);
    }
  }

  // The tile as it lies, half of its rows at a time; of the diagonal's what is below it comes from above. Leaves what it wrote in `sums`.
  static INGOT_DEVICE void add_and_write(const SymmetricMatmulProblem& p, int64_t batch, const Tile& tile, Bf16* half, Sums& sums) {
    const int columns = at_most(p.m - tile.column, kSide);
    INGOT_ROLLED
    for (int first = 0; first < kSide; first += kRows) {
      const int rows = at_most(p.m - tile.row - first, kRows);
      if (p.c.data != nullptr) {
        read_rows(matrix(p.c, batch, tile.row + first, tile.column), p.c.row_stride, rows, columns, half);
        barrier();
      }
      if (wave_row() == first) {
        if (p.c.data != nullptr)
          for_each_sum(sums, [&](MatrixSum& sum, int row, int column) { add(p, half_at(half, row - first, column), sum); });
        else for_each_sum(sums, [&](MatrixSum& sum, int, int) { scale(p.alpha, sum); });
      }
      if (tile.is_diagonal() && p.c.data != nullptr) barrier();  // before mirrored sums come to where others read c
      if (tile.is_diagonal())
        for_each_sum(sums, [&](const MatrixSum& sum, int row, int column) { store_in_both(sum, row, column, first, half); });
      else if (wave_row() == first)
        for_each_sum(sums, [&](const MatrixSum& sum, int row, int column) { store(sum, half_at(half, row - first, column), kOutStep); });
      barrier();
      write_rows(half, matrix(p.out, batch, tile.row + first, tile.column), p.out.row_stride, rows, columns);
      barrier();  // before the other half comes there
    }
  }

  static INGOT_DEVICE Bf16* half_at(Bf16* half, int row, int column) { return half + row * kOutStep + column; }
  static INGOT_DEVICE void scale(float alpha, MatrixSum& sum) {
    INGOT_UNROLL
    for (int i = 0; i < kMatrixOfThread; ++i) sum.at[i] *= alpha;
  }
  static INGOT_DEVICE void add(const SymmetricMatmulProblem& p, const Bf16* c, MatrixSum& sum) {
    INGOT_UNROLL
    for (int i = 0; i < kMatrixOfThread; ++i)
      sum.at[i] = p.alpha * sum.at[i] + p.beta * to_float(c[MatrixSum::row(i) * kOutStep + MatrixSum::column(i)]);
  }

  // Of the diagonal's tile, where it and what it mirrors lie in the half that begins at row `first`.
  static INGOT_DEVICE void store_in_both(const MatrixSum& sum, int row, int column, int first, Bf16* half) {
    const bool is_in = wave_row() == first, mirrored_is_in = column / kRows * kRows == first;
    if (row < column) {
      if (is_in) store(sum, half_at(half, row - first, column), kOutStep);
      if (mirrored_is_in) store_transposed(sum, half_at(half, column - first, row));
    } else if (row == column && is_in) {
      Bf16* const to = half_at(half, row - first, column);
      INGOT_UNROLL
      for (int i = 0; i < kMatrixOfThread; ++i) {
        if (MatrixSum::row(i) > MatrixSum::column(i)) continue;
        from_float(sum.at[i], to[MatrixSum::row(i) * kOutStep + MatrixSum::column(i)]);
        from_float(sum.at[i], to[MatrixSum::column(i) * kOutStep + MatrixSum::row(i)]);
      }
    }
  }

  static INGOT_DEVICE void write_mirrored(const SymmetricMatmulProblem& p, int64_t batch, const Tile& tile, Bf16* half, Sums& sums) {
    INGOT_ROLLED
    for (int first = 0; first < kSide; first += kRows) {
      for_each_sum(sums, [&](const MatrixSum& sum, int row, int column) {
        if (column / kRows * kRows == first) store_transposed(sum, half_at(half, column - first, row));
      });
      barrier();
      write_rows(half, matrix(p.out, batch, tile.column + first, tile.row), p.out.row_stride, at_most(p.m - tile.column - first, kRows),
                 kSide);
      barrier();  // before the other half comes there
    }
  }

  static INGOT_DEVICE void store_transposed(const MatrixSum& sum, Bf16* to) {
#if INGOT_WAVE == 32
    INGOT_UNROLL
    for (int i = 0; i < kMatrixOfThread; ++i) from_float(sum.at[i], to[MatrixSum::column(i) * kOutStep + MatrixSum::row(i)]);
#else
    Vector<Bf16, kMatrixOfThread> rows;
    for (int i = 0; i < kMatrixOfThread; ++i) from_float(sum.at[i], rows.at[i]);
    *reinterpret_cast<Vector<Bf16, kMatrixOfThread>*>(to + MatrixSum::column(0) * kOutStep + MatrixSum::row(0)) = rows;
#endif
  }

  static constexpr int kVectorsOfRow = kSide / kAtOnce, kVectorsOfHalf = kRows * kVectorsOfRow / kThreads;
  static INGOT_DEVICE int row_of(int i) { return thread_index() / kVectorsOfRow + i * (kThreads / kVectorsOfRow); }
  static INGOT_DEVICE int column_of() { return thread_index() % kVectorsOfRow * kAtOnce; }

  static INGOT_DEVICE void read_rows(const Bf16* from, int64_t step, int rows, int columns, Bf16* half) {
    INGOT_UNROLL
    for (int i = 0; i < kVectorsOfHalf; ++i) {
      V v{};
      const Bf16* const own = from + row_of(i) * step + column_of();
      if (row_of(i) < rows) {
        if (column_of() + kAtOnce <= columns) v = *reinterpret_cast<const V*>(own);
        else
          for (int n = 0; n < kAtOnce; ++n)
            if (column_of() + n < columns) v.at[n] = own[n];
      }
      *reinterpret_cast<V*>(half + row_of(i) * kOutStep + column_of()) = v;
    }
  }
  static INGOT_DEVICE void write_rows(const Bf16* half, Bf16* to, int64_t step, int rows, int columns) {
    INGOT_UNROLL
    for (int i = 0; i < kVectorsOfHalf; ++i) {
      if (row_of(i) >= rows) continue;
      const V v = *reinterpret_cast<const V*>(half + row_of(i) * kOutStep + column_of());
      Bf16* const own = to + row_of(i) * step + column_of();
      if (column_of() + kAtOnce <= columns) *reinterpret_cast<V*>(own) = v;
      else
        for (int n = 0; n < kAtOnce; ++n)
          if (column_of() + n < columns) own[n] = v.at[n];
    }
  }
};

template <class Launcher>
auto symmetric_matmul(const SymmetricMatmulProblem& p, const Launcher& launcher) {
  const int64_t tiles = (p.m + kSymmetricTile - 1) / kSymmetricTile;
  return launcher.template run<SymmetricMatmul>(p.batch * tiles * (tiles + 1) / 2, SymmetricMatmul::kThreads, p);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
