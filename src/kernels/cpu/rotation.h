// Rotation of one head, shared by the RoPE and CCA kernels.
#pragma once

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {

struct Rotation {
  const float *cosine, *sine;  // [half]
  int64_t half;
};

// The pair (a, b) turned by the angle of cosine c and sine s, or, kBack, the other way.
template <bool kBack>
INGOT_INLINE void rotate(Float& a, Float& b, Float c, Float s) {
  if constexpr (kBack) s = -s;
  const Float turned = fused(a, c, -(b * s));
  b = fused(b, c, a * s);
  a = turned;
}

// Channel i turns with channel i + half; what lies behind 2 * half is copied. kBack turns the other way, which is the gradient.
// from(i, n) is the vector of the head's channel i; `to` may be where it is read.
template <bool kBack, class From, class To>
INGOT_INLINE void rotate_each(const From& from, To* to, int64_t head_dim, const Rotation& r) {
  for_vectors(r.half, [&](int64_t i, auto n) {
    Float a = from(i, n), b = from(r.half + i, n);
    rotate<kBack>(a, b, load_some(r.cosine + i, n), load_some(r.sine + i, n));
    store_some(to + i, a, n);
    store_some(to + r.half + i, b, n);
  });
  const int64_t rest = 2 * r.half;
  for_vectors(head_dim - rest, [&](int64_t i, auto n) { store_some(to + rest + i, from(rest + i, n), n); });
}

// `from` and `to` may be the same.
template <bool kBack, class From, class To>
INGOT_INLINE void rotate_head(const From* from, To* to, int64_t head_dim, const Rotation& r) {
  const auto load_from = [&](int64_t i, auto n) {
    prefetch_ahead(from + i);
    return load_some(from + i, n);
  };
  rotate_each<kBack>(load_from, to, head_dim, r);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
