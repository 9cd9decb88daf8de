// One row at a time, which stays in the cache between the passes over it: the first sums up each run of channels, so that the roots and
// quotients of many are under way at once; the second norms and rotates. Each computes as rows_norm.cpp and rows_rope.cpp do, so that q, k
// and the gradients are theirs to the last bit.
#include "kernels/cpu/rows_qk_norm.h"

#include "kernels/cpu/rotation.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

using Part = QkNormProblem::Part;

template <class T>
INGOT_INLINE float inverse_rms(const T* x, int64_t width, double eps) {
  Float squares{};
  for_vectors(width, [&](int64_t i, auto n) {
    prefetch_ahead(x + i);
    const Float some = load_some(x + i, n);
    squares = fused(some, some, squares);
  });
  const float mean = sum_of_lanes(squares)[0] / static_cast<float>(width);
  return 1.0f / __builtin_sqrtf(mean + static_cast<float>(eps));
}

template <class T>
void forward(const QkNormProblem p, int64_t begin, int64_t end) {  // p by value: no store can change it
  const int64_t d = p.head_dim, width = (p.q.heads + 2 * p.kv_heads) * d;
  float* inverse = p.inverse + begin * (p.q.runs(d) + p.k.runs(d));
  for (int64_t row = begin; row < end; ++row) {
    const Rotation rotation{p.cosine + row % p.table_rows * p.half, p.sine + row % p.table_rows * p.half, p.half};
    const T* x = static_cast<const T*>(p.packed) + row * width;
    const auto norm_and_rotate = [&](const Part& part) {
      const int64_t runs = part.runs(d);
      for (int64_t run = 0; run < runs; ++run) inverse[run] = inverse_rms(x + run * part.run, part.run, p.eps);
      T* out = static_cast<T*>(part.split) + row * part.heads * d;
      for (int64_t run = 0; run < runs; ++run, x += part.run, out += part.run, ++inverse)
        for (int64_t at = 0; at < part.run; at += d) {
          const Float by = broadcast(*inverse);
          const auto normed = [&](int64_t i, auto n) {
            return rounded_to<T>(load_some(x + at + i, n) * by * load_some(part.weight + at + i, n));
          };
          rotate_each<false>(normed, out + at, d, rotation);
        }
    };
    norm_and_rotate(p.q);
    norm_and_rotate(p.k);
  }
}

constexpr int64_t kRuns = 8;  // that are worked on between a load and a store of their weight's sums

// Of `count` runs of `width` channels. grad holds the gradients of the normed runs and gets those of x.
template <class T>
INGOT_INLINE void norm_backward(const T* x, const float* weights, const float* inverse, int64_t count, int64_t width, T* grad,
                                float* grad_weight) {
  float along[kRuns];
  for (int64_t run = 0; run < count; ++run) {
    const int64_t at = run * width;
    Float dot{};
    for_vectors(width, [&](int64_t i, auto n) {
      prefetch_ahead(x + at + i);
      dot = fused(load_some(grad + at + i, n) * load_some(weights + i, n), load_some(x + at + i, n), dot);
    });
    along[run] = sum_of_lanes(dot)[0] * inverse[run] * inverse[run] * inverse[run] * (1.0f / static_cast<float>(width));
  }
  for_vectors(width, [&](int64_t i, auto n) {
    const Float weight = load_some(weights + i, n);
    Float of_weight = load_some(grad_weight + i, n);
    for (int64_t run = 0; run < count; ++run) {
      const Float some = load_some(x + run * width + i, n), g = load_some(grad + run * width + i, n), by = broadcast(inverse[run]);
      of_weight = fused(g * some, by, of_weight);
      store_some(grad + run * width + i, fused(g * weight, by, -(some * along[run])), n);
    }
    store_some(grad_weight + i, of_weight, n);
  });
}

template <class T>
void backward(const QkNormProblem p, int64_t begin, int64_t end, float* sums) {
  const int64_t d = p.head_dim, width = (p.q.heads + 2 * p.kv_heads) * d, values = p.kv_heads * d;
  const float* inverse = p.inverse + begin * (p.q.runs(d) + p.k.runs(d));
  for (int64_t row = begin; row < end; ++row) {
    const Rotation rotation{p.cosine + row % p.table_rows * p.half, p.sine + row % p.table_rows * p.half, p.half};
    const T* x = static_cast<const T*>(p.packed) + row * width;
    T* grad = static_cast<T*>(p.grad_packed) + row * width;
    const auto back = [&](const Part& part, float* grad_weight) {
      const T* rotated = static_cast<const T*>(part.split) + row * part.heads * d;
      const int64_t runs = part.runs(d);
      for (int64_t first = 0; first < runs; first += kRuns) {
        const int64_t count = smaller(kRuns, runs - first), channels = count * part.run;
        for (int64_t at = 0; at < channels; at += d) rotate_head<true>(rotated + at, grad + at, d, rotation);
        norm_backward(x, part.weight, inverse, count, part.run, grad, grad_weight);
        x += channels, grad += channels, rotated += channels, inverse += count;
      }
    };
    back(p.q, sums);
    back(p.k, sums + p.q.run);
    const T* grad_v = static_cast<const T*>(p.grad_v) + row * values;
    for (int64_t i = 0; i < values; ++i) grad[i] = grad_v[i];
  }
}

}  // namespace

void qk_norm_forward(const QkNormProblem& p, int64_t begin, int64_t end) {
  p.is_bf16 ? forward<bf16>(p, begin, end) : forward<float>(p, begin, end);
}
void qk_norm_backward(const QkNormProblem& p, int64_t begin, int64_t end, float* sums) {
  p.is_bf16 ? backward<bf16>(p, begin, end, sums) : backward<float>(p, begin, end, sums);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
