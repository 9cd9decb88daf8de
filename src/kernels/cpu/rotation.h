// Rotation of one head, shared by the RoPE and CCA kernels.
#pragma once

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {

struct Rotation {
  const float *cosine, *sine;  // [half]
  int64_t half;
};

// Channel i turns with channel i + half; what lies behind 2 * half is copied. kBack turns the other way, which is the gradient.
// `from` and `to` may be the same.
template <bool kBack, class From, class To>
INGOT_INLINE void rotate_head(const From* from, To* to, int64_t head_dim, const Rotation& r) {
  for (int64_t i = 0; i < r.half; i += kLanes) {
    const int64_t n = r.half - i;
    const Float a = load_some(from + i, n), b = load_some(from + r.half + i, n);
    const Float c = load_some(r.cosine + i, n), s = kBack ? -load_some(r.sine + i, n) : load_some(r.sine + i, n);
    store_some(to + i, a * c - b * s, n);
    store_some(to + r.half + i, b * c + a * s, n);
  }
  for (int64_t i = 2 * r.half; i < head_dim; i += kLanes) store_some(to + i, load_some(from + i, head_dim - i), head_dim - i);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
