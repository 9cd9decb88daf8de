// Digests of the bytes of tensors. 20 vector operations for 32 bytes are faster than memory, but so many of them that a processor looks too
// few lines ahead by itself.
#include "kernels/cpu/rows_digest.h"

#include "kernels/cpu/simd.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

#if defined(__AVX2__)
constexpr int kWords = 4;  // 512 bits gain nothing where memory is the limit
#else
constexpr int kWords = 2;
#endif
typedef uint64_t Words __attribute__((vector_size(8 * kWords)));

// Of the lower halves.
INGOT_INLINE Words product(Words a, Words b) {
#if defined(__AVX2__)
  return reinterpret_cast<Words>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<Words>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xffffffff) * (b & 0xffffffff);
#endif
}

// By a factor below 2^32.
INGOT_INLINE Words times(Words x, Words factor) { return product(x, factor) + (product(x >> 32, factor) << 32); }

struct Sums {
  Words first{}, second{};

  INGOT_INLINE void add(Words word, Words key) {
    Words x = times(word ^ key, Words{} + kDigestFirst);
    x = times(x ^ (x >> 32), Words{} + kDigestSecond);
    const Words high = x >> 32;
    first += x ^ high;
    second += product(x, high);
  }
  /// One word more, at a position; the other words of the vector count nothing.
  void add_one(uint64_t word, uint64_t position) {
    Sums one;
    one.add(Words{} + word, Words{} + (kDigestSeed + position * kDigestStep));
    first[0] += one.first[0];
    second[0] += one.second[0];
  }
};

uint64_t total(Words x) {
  uint64_t sum = 0;
  for (int i = 0; i < kWords; ++i) sum += x[i];
  return sum;
}

void add_to(uint64_t* sums, const Sums& own) {
  __atomic_fetch_add(&sums[0], total(own.first), __ATOMIC_RELAXED);
  __atomic_fetch_add(&sums[1], total(own.second), __ATOMIC_RELAXED);
}

// Words [begin, end) of a tensor, of which the last may be incomplete. Position 0 is that of the length.
void digest_words(const DigestProblem::Tensor& x, int64_t begin, int64_t end, Sums& sums) {
  const char* const data = static_cast<const char*>(x.data);
  Words key;
  for (int i = 0; i < kWords; ++i) key[i] = kDigestSeed + static_cast<uint64_t>(begin + i + 1) * kDigestStep;
  const Words step = Words{} + kWords * kDigestStep;
  constexpr int64_t kAheadBytes = 2048;  // without: 5.4 instead of 9.7 GB/s, where a copy has 9.6 (a core of a Xeon, DDR5)
  const int64_t whole = smaller(end, x.bytes / 8);
  int64_t i = begin;
  for (; i + kWords <= whole; i += kWords, key += step) {
    __builtin_prefetch(data + 8 * i + kAheadBytes);
    Words words;
    __builtin_memcpy(&words, data + 8 * i, sizeof words);
    sums.add(words, key);
  }
  for (; i < end; ++i) {
    uint64_t word = 0;
    __builtin_memcpy(&word, data + 8 * i, static_cast<size_t>(smaller(8, x.bytes - 8 * i)));
    sums.add_one(word, static_cast<uint64_t>(i + 1));
  }
}

}  // namespace

void digest(const DigestProblem& p, int64_t begin, int64_t end) {
  constexpr int64_t kChunkWords = DigestProblem::kChunkBytes / 8;
  int64_t t = 0;
  for (int64_t chunk = begin; chunk < end; ++chunk) {
    while (t + 1 < p.tensors && p.of[t + 1].first_chunk <= chunk) ++t;
    const auto& x = p.of[t];
    const int64_t first = (chunk - x.first_chunk) * kChunkWords;
    Sums sums;
    if (first == 0) sums.add_one(static_cast<uint64_t>(x.bytes), 0);
    digest_words(x, first, smaller(first + kChunkWords, (x.bytes + 7) / 8), sums);
    add_to(p.sums + 2 * t, sums);
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
