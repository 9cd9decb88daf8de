// Splitting a packed projection into heads and rotating q and k on a GPU: cpu/rows_rope.h has the problem. Everything is read and written
// once.
#pragma once

#include "kernels/cpu/rows_rope.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// A thread a vector of a head, in a loop over the grid. Channels i and i + half turn together, so that a vector's partner is one vector.
template <class T, int count, bool is_backward>
struct SplitRotate {
  using V = Vector<T, count>;

  static INGOT_DEVICE void run(const cpu::SplitRotateProblem& p) {
    const int64_t per_head = quotient(p.head_dim, count), heads = p.heads + 2 * p.kv_heads, all = p.rows * heads * per_head;
    for (int64_t i = block_index() * block_threads() + thread_index(); i < all; i += grid_blocks() * block_threads()) {
      const int64_t vector = remainder(i, per_head), of_all = quotient(i, per_head), head = remainder(of_all, heads),
                    row = quotient(of_all, heads);
      V* const packed = static_cast<V*>(p.packed) + (row * heads + head) * per_head;
      V* const split = head < p.heads                ? static_cast<V*>(p.q) + (row * p.heads + head) * per_head
                       : head < p.heads + p.kv_heads ? static_cast<V*>(p.k) + (row * p.kv_heads + head - p.heads) * per_head
                                                     : static_cast<V*>(p.v) + (row * p.kv_heads + head - p.heads - p.kv_heads) * per_head;
      const V* const from = is_backward ? split : packed;
      V* const to = is_backward ? packed : split;
      const int64_t half = quotient(p.half, count);
      const bool turns = head < p.heads + p.kv_heads && vector < 2 * half;
      to[vector] = turns ? turned(p, from, vector, half, row) : from[vector];
    }
  }

  static INGOT_DEVICE V turned(const cpu::SplitRotateProblem& p, const V* from, int64_t vector, int64_t half, int64_t row) {
    const bool is_first = vector < half;
    const int64_t in_table = remainder(row, p.table_rows) * p.half + (is_first ? vector : vector - half) * count;
    const V own = from[vector], other = from[is_first ? vector + half : vector - half];
    V out;
    for (int k = 0; k < count; ++k) {
      const float cosine = p.cosine[in_table + k], sine = p.sine[in_table + k];
      from_float(to_float(own.at[k]) * cosine + to_float(other.at[k]) * (is_first != is_backward ? -sine : sine), out.at[k]);
    }
    return out;
  }
};

template <bool is_backward, class Launcher>
auto split_rotate(const cpu::SplitRotateProblem& p, const Launcher& launcher) {
  constexpr int kThreads = 256;
  const auto with = [&]<class T, int count>(Vector<T, count>) {
    const int64_t vectors = p.rows * (p.heads + 2 * p.kv_heads) * (p.head_dim / count);
    return launcher.template run<SplitRotate<T, count, is_backward>>((vectors + kThreads - 1) / kThreads, kThreads, p);
  };
  const bool are_aligned = is_aligned(p.packed) && is_aligned(p.q) && is_aligned(p.k) && is_aligned(p.v);
  const int64_t together = p.is_bf16 ? 8 : 4;
  const bool has_vectors = are_aligned && p.head_dim % together == 0 && p.half % together == 0;
  if (p.is_bf16) return has_vectors ? with(Vector<Bf16, 8>{}) : with(Vector<Bf16, 1>{});
  return has_vectors ? with(Vector<float, 4>{}) : with(Vector<float, 1>{});
}

template <class Launcher>
auto split_rotate_forward(const cpu::SplitRotateProblem& p, const Launcher& launcher) {
  return split_rotate<false>(p, launcher);
}
template <class Launcher>
auto split_rotate_backward(const cpu::SplitRotateProblem& p, const Launcher& launcher) {
  return split_rotate<true>(p, launcher);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
