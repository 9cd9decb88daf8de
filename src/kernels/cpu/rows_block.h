// Shared by the rows_*.cpp sources: whole or partial vectors at the end of a row.
#pragma once

#include "kernels/cpu/simd.h"

namespace ingot::kernels::cpu::INGOT_ISA {

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
