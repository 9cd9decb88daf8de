// Splitting a packed projection into heads and rotating q and k, and the way back.
#include "kernels/cpu/rows_rope.h"

#include "kernels/cpu/rotation.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

template <class T>
void copy(const T* from, T* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i];
}

template <class T, bool kBack>
void move_heads(const SplitRotateProblem& p, int64_t begin, int64_t end) {
  const int64_t d = p.head_dim, width = (p.heads + 2 * p.kv_heads) * d;
  for (int64_t row = begin; row < end; ++row) {
    const Rotation rotation{p.cosine + row % p.table_rows * p.half, p.sine + row % p.table_rows * p.half, p.half};
    T* packed = static_cast<T*>(p.packed) + row * width;
    const auto move = [&](void* heads_first, int64_t heads, bool turns) {
      T* split = static_cast<T*>(heads_first) + row * heads * d;
      for (int64_t head = 0; head < heads; ++head, packed += d, split += d) {
        const T* from = kBack ? split : packed;
        T* to = kBack ? packed : split;
        if (turns) rotate_head<kBack>(from, to, d, rotation);
        else copy(from, to, d);
      }
    };
    move(p.q, p.heads, true);
    move(p.k, p.kv_heads, true);
    move(p.v, p.kv_heads, false);
  }
}

}  // namespace

void split_rotate_forward(const SplitRotateProblem& p, int64_t begin, int64_t end) {
  p.is_bf16 ? move_heads<bf16, false>(p, begin, end) : move_heads<float, false>(p, begin, end);
}
void split_rotate_backward(const SplitRotateProblem& p, int64_t begin, int64_t end) {
  p.is_bf16 ? move_heads<bf16, true>(p, begin, end) : move_heads<float, true>(p, begin, end);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
