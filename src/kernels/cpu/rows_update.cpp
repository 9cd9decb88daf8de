// Optimizer updates: one pass over a parameter and its state.
#include "kernels/cpu/rows_update.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

INGOT_INLINE Float root(Float x) {
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}

}  // namespace

void adamw(const AdamwProblem& p, int64_t begin, int64_t end) {
  const float beta1 = static_cast<float>(p.beta1), beta2 = static_cast<float>(p.beta2), eps = static_cast<float>(p.eps);
  const float rest1 = static_cast<float>(1 - p.beta1), rest2 = static_cast<float>(1 - p.beta2),
              scale = static_cast<float>(p.gradient_scale);
  const float keep = static_cast<float>(1 - p.lr * p.decay), step = static_cast<float>(p.lr / p.correction1);
  const float inverse2 = static_cast<float>(1 / p.correction2);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    const Float g = load_some(p.grad + i, n) * scale;
    const Float m = load_some(p.first + i, n) * beta1 + g * rest1;
    const Float v = load_some(p.second + i, n) * beta2 + g * g * rest2;
    const Float w = load_some(p.master + i, n) * keep - m * step / (root(v * inverse2) + eps);
    store_some(p.first + i, m, n);
    store_some(p.second + i, v, n);
    store_some(p.master + i, w, n);
    if (p.narrow) store_some(p.narrow + i, w, n);
  }
}

void momentum(const MomentumProblem& p, int64_t begin, int64_t end) {
  const float mu = static_cast<float>(p.mu), scale = static_cast<float>(p.gradient_scale);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    const Float g = load_some(p.grad + i, n) * scale;
    const Float m = load_some(p.momentum + i, n) * mu + g;
    store_some(p.momentum + i, m, n);
    store_some(p.direction + i, p.nesterov ? g + m * mu : m, n);
  }
}

void apply(const ApplyProblem& p, int64_t begin, int64_t end) {
  const float keep = static_cast<float>(p.keep), step = static_cast<float>(p.step);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    const Float w = load_some(p.master + i, n) * keep - load_some(p.direction + i, n) * step;
    store_some(p.master + i, w, n);
    if (p.narrow) store_some(p.narrow + i, w, n);
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
