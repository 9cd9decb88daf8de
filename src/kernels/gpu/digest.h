// Digests of tensors on a GPU: cpu/rows_digest.h has the problem, of which a block has a chunk. Bound by memory: a word takes about 16
// integer instructions, half of what an H100 has time for while 8 bytes arrive.
#pragma once

#include "kernels/cpu/rows_digest.h"
#include "kernels/gpu/tensor_table.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

struct DigestSums {
  uint64_t first = 0, second = 0;

  /// The word at a position; 0 is that of the length.
  INGOT_DEVICE void add(uint64_t word, uint64_t position) {
    uint64_t x = (word ^ (cpu::kDigestSeed + position * cpu::kDigestStep)) * cpu::kDigestFirst;
    x = (x ^ (x >> 32)) * cpu::kDigestSecond;
    const uint64_t high = x >> 32;
    first += x ^ high;
    second += high * static_cast<uint32_t>(x);
  }
};

struct Digest {
  static constexpr int kThreads = 256, kAtOnce = 4;  // loads under way
  static constexpr int64_t kChunkWords = cpu::DigestProblem::kChunkBytes / 8;
  using Pair = Vector<uint64_t, 2>;

  static INGOT_DEVICE void run(const cpu::DigestProblem& p) {
    INGOT_SHARED(uint64_t, of_waves, 2 * kThreads / kWave);
    const int64_t chunk = block_index();
    const int t = tensor_of_chunk(p, chunk);
    DigestSums sums = own_sums(static_cast<const uint8_t*>(p.of[t].data), p.of[t].bytes, (chunk - p.of[t].first_chunk) * kChunkWords);
    for (int mask = kWave / 2; mask > 0; mask /= 2) {
      sums.first += shuffle_xor(sums.first, mask);
      sums.second += shuffle_xor(sums.second, mask);
    }
    const int wave = thread_index() / kWave;
    if (thread_index() % kWave == 0) of_waves[2 * wave] = sums.first, of_waves[2 * wave + 1] = sums.second;
    barrier();
    if (thread_index() >= 2) return;
    uint64_t sum = 0;
    for (int i = 0; i < kThreads / kWave; ++i) sum += of_waves[2 * i + thread_index()];
    add_atomically(p.sums + 2 * t + thread_index(), sum);
  }

  /// Of this thread, in the chunk that begins at word `first`.
  static INGOT_DEVICE DigestSums own_sums(const uint8_t* data, int64_t bytes, int64_t first) {
    DigestSums sums;
    const int64_t words = (bytes + 7) / 8, end = first + kChunkWords < words ? first + kChunkWords : words;
    if (first == 0 && thread_index() == 0) sums.add(static_cast<uint64_t>(bytes), 0);
    int64_t at = first;  // behind what pairs have
    if (is_aligned(data)) {
      at = bytes / 16 * 2 < end ? bytes / 16 * 2 : end;
      add_pairs(reinterpret_cast<const Pair*>(data), first / 2, at / 2, sums);
    }
    for (int64_t i = at + thread_index(); i < end; i += kThreads) {
      uint64_t word = 0;
      for (int k = 0; k < 8 && 8 * i + k < bytes; ++k) word |= static_cast<uint64_t>(data[8 * i + k]) << (8 * k);
      sums.add(word, static_cast<uint64_t>(i + 1));
    }
    return sums;
  }

  static INGOT_DEVICE void add_pairs(const Pair* pairs, int64_t begin, int64_t end, DigestSums& sums) {
    for (int64_t i = begin + thread_index(); i < end; i += kAtOnce * kThreads) {
      Pair some[kAtOnce];
      INGOT_UNROLL
      for (int k = 0; k < kAtOnce; ++k)
        if (i + k * kThreads < end) some[k] = pairs[i + k * kThreads];
      INGOT_UNROLL
      for (int k = 0; k < kAtOnce; ++k) {
        if (i + k * kThreads >= end) continue;
        const auto position = static_cast<uint64_t>(2 * (i + k * kThreads) + 1);
        sums.add(some[k].at[0], position);
        sums.add(some[k].at[1], position + 1);
      }
    }
  }
};

template <class Launcher>
auto digest(const cpu::DigestProblem& p, const Launcher& launcher) {
  return launcher.template run<Digest>(p.rows, Digest::kThreads, p);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
