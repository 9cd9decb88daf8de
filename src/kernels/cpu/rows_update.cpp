// Optimizer updates: one pass over a parameter and its state.
#include "kernels/cpu/rows_update.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

INGOT_INLINE Float root(Float x) {
  for (int i = 0; i < kLanes; ++i) x[i] = __builtin_sqrtf(x[i]);
  return x;
}

// As kernels/stochastic_rounding.h says, still in fp32.
INGOT_INLINE Float stochastically_rounded(Float x, uint32_t key) {
  const Bits bits = reinterpret_cast<Bits>(x);
  Bits hash = bits ^ key;
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bU;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35U;
  const Bits rounded = (bits + (hash >> 16)) & 0xffff0000U;
  return x - x == Float{} ? reinterpret_cast<Float>(rounded) : x;
}

INGOT_INLINE void keep(float* to, Float x, int64_t n, uint32_t) { store_some(to, x, n); }
INGOT_INLINE void keep(bf16* to, Float x, int64_t n, uint32_t key) { store_some(to, stochastically_rounded(x, key), n); }

template <class Moment>
INGOT_INLINE void adamw_of(const AdamwProblem& p, Moment* first, Moment* second, int64_t begin, int64_t end) {
  const float beta1 = static_cast<float>(p.beta1), beta2 = static_cast<float>(p.beta2), eps = static_cast<float>(p.eps);
  const float rest1 = static_cast<float>(1 - p.beta1), rest2 = static_cast<float>(1 - p.beta2),
              scale = static_cast<float>(p.gradient_scale);
  const float shrink = static_cast<float>(1 - p.lr * p.decay), step = static_cast<float>(p.lr / p.correction1);
  const float inverse2 = static_cast<float>(1 / p.correction2);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    const Float g = load_some(p.grad + i, n) * scale;
    const Float m = load_some(first + i, n) * beta1 + g * rest1;
    const Float v = load_some(second + i, n) * beta2 + g * g * rest2;
    const Float w = load_some(p.master + i, n) * shrink - m * step / (root(v * inverse2) + eps);
    keep(first + i, m, n, p.rounding_key);
    keep(second + i, v, n, ~p.rounding_key);
    store_some(p.master + i, w, n);
    if (p.narrow) store_some(p.narrow + i, w, n);
  }
}

template <class Moment>
INGOT_INLINE void momentum_of(const MomentumProblem& p, Moment* momentum, int64_t begin, int64_t end) {
  const float mu = static_cast<float>(p.mu), scale = static_cast<float>(p.gradient_scale);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    const Float g = load_some(p.grad + i, n) * scale;
    const Float m = load_some(momentum + i, n) * mu + g;
    keep(momentum + i, m, n, p.rounding_key);
    store_some(p.direction + i, p.nesterov ? g + m * mu : m, n);
  }
}

}  // namespace

void adamw(const AdamwProblem& p, int64_t begin, int64_t end) {
  if (p.bf16_first) adamw_of(p, p.bf16_first, p.bf16_second, begin, end);
  else adamw_of(p, p.first, p.second, begin, end);
}

void momentum(const MomentumProblem& p, int64_t begin, int64_t end) {
  if (p.bf16_momentum) momentum_of(p, p.bf16_momentum, begin, end);
  else momentum_of(p, p.momentum, begin, end);
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
