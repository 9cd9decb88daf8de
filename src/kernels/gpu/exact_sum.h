// Exact sums on a GPU, in fp64: cpu/rows_exact_sum.h has the problems. Bound by memory: of four squares in a thread come six exchanges of
// fp64 and 26 of its operations, of which an A100, the slowest of these in fp64, has time for a third more than arrive.
#pragma once

#include "kernels/cpu/rows_exact_sum.h"
#include "kernels/gpu/tensor_table.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

template <int count>
struct RoundTerms {
  static constexpr int kPair = count > 1 ? 2 : 1;  // fp64 of a load

  static INGOT_DEVICE void run(const cpu::RoundProblem& p) {
    using Pair = Vector<double, kPair>;
    const int64_t vectors = quotient(p.rows, count);
    for (int64_t i = block_index() * block_threads() + thread_index(); i < vectors; i += grid_blocks() * block_threads()) {
      const auto terms = reinterpret_cast<const Vector<float, count>*>(p.terms)[i];
      Pair* const to = reinterpret_cast<Pair*>(p.sum) + i * (count / kPair);
      INGOT_UNROLL
      for (int k = 0; k < count / kPair; ++k) {
        Pair sum{};
        if (p.adds) sum = to[k];
        INGOT_UNROLL
        for (int j = 0; j < kPair; ++j) {
          const double rounded = (static_cast<double>(terms.at[k * kPair + j]) + p.shift) - p.shift;
          sum.at[j] = p.adds ? sum.at[j] + rounded : rounded;
        }
        to[k] = sum;
      }
    }
  }
};

template <class Launcher>
auto round_terms(const cpu::RoundProblem& p, const Launcher& launcher) {
  constexpr int kThreads = 256;
  const auto with = [&]<int count>(Constant<count>) {
    return launcher.template run<RoundTerms<count>>((p.rows / count + kThreads - 1) / kThreads, kThreads, p);
  };
  return is_aligned(p.terms) && is_aligned(p.sum) && p.rows % 4 == 0 ? with(Constant<4>{}) : with(Constant<1>{});
}

/// Sums that a block's threads have, added up in a fixed order.
template <int kThreads>
struct PartSums {
  static constexpr int kParts = cpu::SquareSumProblem::kParts, kWaves = kThreads / kWave;
  double of[kParts] = {};

  INGOT_DEVICE void write(double* to) {
    INGOT_SHARED(double, of_waves, kParts* kWaves);
    INGOT_UNROLL
    for (int part = 0; part < kParts; ++part) {
      double sum = of[part];
      for (int mask = kWave / 2; mask > 0; mask /= 2) sum += shuffle_xor(sum, mask);
      if (thread_index() % kWave == 0) of_waves[part * kWaves + thread_index() / kWave] = sum;
    }
    barrier();
    if (thread_index() >= kParts) return;
    double sum = 0;
    for (int wave = 0; wave < kWaves; ++wave) sum += of_waves[thread_index() * kWaves + wave];
    to[thread_index()] = sum;
  }
};

/// Eight threads have a block of 32 elements: thread t those from 4 t on.
struct SquareSum {
  static constexpr int kThreads = 256, kAtOnce = 4;  // loads under way
  static constexpr int64_t kStep = 4 * kThreads;     // elements
  using Quad = Vector<float, 4>;
  static_assert(cpu::SquareSumProblem::kBlock == 32 && cpu::SquareSumProblem::kChunk % (kAtOnce * kStep) == 0);

  static INGOT_DEVICE void run(const cpu::SquareSumProblem& p) {
    const auto& tensor = p.of[tensor_of_chunk(p, block_index())];
    const auto chunk = own_chunk(p, tensor);
    const float* const x = tensor.data + chunk.begin;
    const bool whole = is_aligned(x);
    PartSums<kThreads> sums;
    for (int64_t first = 4 * thread_index(); first - 4 * thread_index() < chunk.size; first += kAtOnce * kStep) {
      Quad some[kAtOnce];
      INGOT_UNROLL
      for (int k = 0; k < kAtOnce; ++k) some[k] = load(x, first + k * kStep, chunk.size, whole);
      INGOT_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        double rest = block_sum(some[k]);
        if (thread_index() % 8 != 0) continue;
        INGOT_UNROLL
        for (int i = 0; i < sums.kParts; ++i) {
          const double part = (rest + p.shifts[i]) - p.shifts[i];
          sums.of[i] += part;
          rest -= part;
        }
      }
    }
    sums.write(p.sums + block_index() * sums.kParts);
  }

  static INGOT_DEVICE Quad load(const float* x, int64_t at, int64_t size, bool whole) {
    if (whole && at + 4 <= size) return *reinterpret_cast<const Quad*>(x + at);
    Quad quad{};
    for (int k = 0; k < 4; ++k)
      if (at + k < size) quad.at[k] = x[at + k];
    return quad;
  }

  /// Halves are added to halves, 16, 8, 4, 2 and 1 elements apart; the same on all eight threads. Of what two threads both have, each adds
  /// up a half.
  static INGOT_DEVICE double block_sum(const Quad& x) {
    const bool high = (thread_index() & 4) != 0, odd = (thread_index() & 2) != 0;
    double squares[4];
    INGOT_UNROLL
    for (int k = 0; k < 4; ++k) squares[k] = static_cast<double>(x.at[k]) * static_cast<double>(x.at[k]);
    double first = high ? squares[2] : squares[0], second = high ? squares[3] : squares[1];
    first += shuffle_xor(high ? squares[0] : squares[2], 4);
    second += shuffle_xor(high ? squares[1] : squares[3], 4);
    double sum = odd ? second : first;
    sum += shuffle_xor(odd ? first : second, 2);
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 4);
    return sum + shuffle_xor(sum, 2);
  }
};

template <class Launcher>
auto square_sum(const cpu::SquareSumProblem& p, const Launcher& launcher) {
  return launcher.template run<SquareSum>(p.rows, SquareSum::kThreads, p);
}

struct AddChunks {
  static constexpr int kThreads = 256;

  static INGOT_DEVICE void run(const cpu::ChunkSumProblem& p) {
    PartSums<kThreads> sums;
    const int64_t end = p.first_chunk[block_index() + 1];
    for (int64_t chunk = p.first_chunk[block_index()] + thread_index(); chunk < end; chunk += kThreads)
      for (int i = 0; i < sums.kParts; ++i) sums.of[i] += p.of_chunks[chunk * sums.kParts + i];
    sums.write(p.sums + block_index() * sums.kParts);
  }
};

template <class Launcher>
auto add_chunks(const cpu::ChunkSumProblem& p, const Launcher& launcher) {
  return launcher.template run<AddChunks>(p.rows, AddChunks::kThreads, p);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
