// One run of channels at a time, which stays in the cache between the passes over it. Each pass computes as rows_norm.cpp and rows_rope.cpp
// do, so that q, k and the gradients are theirs to the last bit.
#include "kernels/cpu/rows_qk_norm.h"

#include "kernels/cpu/rotation.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

using Part = QkNormProblem::Part;

template <class T>
float inverse_rms(const T* x, int64_t width, double eps) {
  Float squares{};
  for (int64_t i = 0; i < width; i += kLanes) {
    const Float some = load_some(x + i, width - i);
    squares += some * some;
  }
  const float mean = sum_of_lanes(squares)[0] / static_cast<float>(width);
  return 1.0f / __builtin_sqrtf(mean + static_cast<float>(eps));
}

template <class T>
void forward(const QkNormProblem& p, int64_t begin, int64_t end) {
  const int64_t d = p.head_dim, width = (p.q.heads + 2 * p.kv_heads) * d;
  float* inverse = p.inverse + begin * (p.q.runs(d) + p.k.runs(d));
  for (int64_t row = begin; row < end; ++row) {
    const Rotation rotation{p.cosine + row % p.table_rows * p.half, p.sine + row % p.table_rows * p.half, p.half};
    const T* x = static_cast<const T*>(p.packed) + row * width;
    const auto norm_and_rotate = [&](const Part& part) {
      T* out = static_cast<T*>(part.split) + row * part.heads * d;
      for (int64_t run = 0; run < part.runs(d); ++run, x += part.run, out += part.run, ++inverse) {
        *inverse = inverse_rms(x, part.run, p.eps);
        for (int64_t i = 0; i < part.run; i += kLanes) {
          const int64_t n = part.run - i;
          store_some(out + i, load_some(x + i, n) * *inverse * load_some(part.weight + i, n), n);
        }
        for (int64_t at = 0; at < part.run; at += d) rotate_head<false>(out + at, out + at, d, rotation);
      }
    };
    norm_and_rotate(p.q);
    norm_and_rotate(p.k);
  }
}

// grad holds the gradient of the normed run and gets that of x.
template <class T>
void norm_backward(const T* x, const float* weight, float inverse, int64_t width, T* grad, float* grad_weight) {
  Float dot{};
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    const Float some = load_some(x + i, n), g = load_some(grad + i, n);
    dot += g * load_some(weight + i, n) * some;
    add_to(grad_weight, i, g * some * inverse, n);
  }
  const float along = sum_of_lanes(dot)[0] * inverse * inverse * inverse * (1.0f / static_cast<float>(width));
  for (int64_t i = 0; i < width; i += kLanes) {
    const int64_t n = width - i;
    const Float less = load_some(x + i, n) * along;  // rounded before it is subtracted, as in rows_norm.cpp
    store_some(grad + i, load_some(grad + i, n) * load_some(weight + i, n) * inverse - less, n);
  }
}

template <class T>
void backward(const QkNormProblem& p, int64_t begin, int64_t end, float* sums) {
  const int64_t d = p.head_dim, width = (p.q.heads + 2 * p.kv_heads) * d, values = p.kv_heads * d;
  const float* inverse = p.inverse + begin * (p.q.runs(d) + p.k.runs(d));
  for (int64_t row = begin; row < end; ++row) {
    const Rotation rotation{p.cosine + row % p.table_rows * p.half, p.sine + row % p.table_rows * p.half, p.half};
    const T* x = static_cast<const T*>(p.packed) + row * width;
    T* grad = static_cast<T*>(p.grad_packed) + row * width;
    const auto back = [&](const Part& part, float* grad_weight) {
      const T* rotated = static_cast<const T*>(part.split) + row * part.heads * d;
      for (int64_t run = 0; run < part.runs(d); ++run, x += part.run, grad += part.run, rotated += part.run, ++inverse) {
        for (int64_t at = 0; at < part.run; at += d) rotate_head<true>(rotated + at, grad + at, d, rotation);
        norm_backward(x, part.weight, *inverse, part.run, grad, grad_weight);
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
