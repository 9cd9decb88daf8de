// Shared by the rows_*.cpp sources: whole or partial vectors at the end of a row.
#pragma once

#include <type_traits>

#include "kernels/cpu/simd.h"

namespace ingot::kernels::cpu::INGOT_ISA {

// work(i, n) for every vector of `count` elements: from i on, n of them, which is the constant kLanes but for the last, partial vector.
template <class Work>
INGOT_INLINE void for_vectors(int64_t count, const Work& work) {
  const int64_t whole = round_down(count, kLanes);
  for (int64_t i = 0; i < whole; i += kLanes) work(i, std::integral_constant<int64_t, kLanes>());
  if (whole < count) work(whole, count - whole);
}

// Asks for memory that is read soon, `from` or what lies kAhead behind it. Amid the arithmetic of a row a CPU does not look that far ahead,
// and its own prefetching starts anew with every row. Addresses behind a tensor's end do no harm.
inline constexpr int64_t kAhead = 2048;  // bytes
INGOT_INLINE void prefetch(const void* from) { __builtin_prefetch(from); }
INGOT_INLINE void prefetch_ahead(const void* from) { __builtin_prefetch(static_cast<const char*>(from) + kAhead); }

// `left` elements remain in the row; lanes past them read 0 and are not written.
template <class T>
INGOT_INLINE Float load_some(const T* from, int64_t left) {
  return left >= kLanes ? load(from) : load_part(from, left);
}
template <class T>
INGOT_INLINE void store_some(T* to, Float x, int64_t left) {
  left >= kLanes ? store(to, x) : store_part(to, x, left);
}
// 1 in the first `count` lanes, 0 in the others.
INGOT_INLINE Float first_lanes(int64_t count) {
  Float mask;
  for (int i = 0; i < kLanes; ++i) mask[i] = i < count ? 1.0f : 0.0f;
  return mask;
}
INGOT_INLINE void add_to(float* sum, int64_t i, Float x, int64_t n) { store_some(sum + i, load_some(sum + i, n) + x, n); }

}  // namespace ingot::kernels::cpu::INGOT_ISA
