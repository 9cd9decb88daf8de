// Optimizer updates: one pass over a parameter and its state.
#include "kernels/cpu/rows_update.h"

#include "kernels/cpu/rows_block.h"
#include "kernels/cpu/tensor_table.h"

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
INGOT_INLINE void adamw_of(const AdamwProblem& p, const AdamwProblem::Tensor t, int64_t begin, int64_t end) {  // t: no store can change it
  const float scale = p.gradient_scale, beta1 = p.beta1, rest1 = p.rest1, beta2 = p.beta2, rest2 = p.rest2, eps = p.eps,
              inverse2 = p.inverse2;
  auto *const first = static_cast<Moment*>(t.first), *const second = static_cast<Moment*>(t.second);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    const Float g = load_some(t.grad + i, n) * scale;
    const Float m = fused(load_some(first + i, n), broadcast(beta1), g * rest1);
    const Float v = fused(load_some(second + i, n), broadcast(beta2), g * g * rest2);
    const Float w = load_some(t.master + i, n) * t.shrink - m * t.step / (root(v * inverse2) + eps);
    keep(first + i, m, n, t.rounding_key);
    keep(second + i, v, n, ~t.rounding_key);
    store_some(t.master + i, w, n);
    if (t.narrow) store_some(t.narrow + i, w, n);
  }
}

template <class Moment>
INGOT_INLINE void momentum_of(const MomentumProblem& p, const MomentumProblem::Tensor t, int64_t begin, int64_t end) {
  const float scale = p.gradient_scale, mu = p.mu;
  const bool nesterov = p.nesterov;
  auto* const momentum = static_cast<Moment*>(t.momentum);
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t n = end - i;
    const Float g = load_some(t.grad + i, n) * scale;
    const Float m = fused(load_some(momentum + i, n), broadcast(mu), g);
    keep(momentum + i, m, n, t.rounding_key);
    store_some(t.direction + i, nesterov ? fused(m, broadcast(mu), g) : m, n);
  }
}

}  // namespace

void adamw(const AdamwProblem& p, int64_t first, int64_t last) {
  for_each_chunk(p, first, last, [&](const AdamwProblem::Tensor& t, int64_t begin, int64_t end, int64_t) {
    t.has_bf16_moments ? adamw_of<bf16>(p, t, begin, end) : adamw_of<float>(p, t, begin, end);
  });
}

void momentum(const MomentumProblem& p, int64_t first, int64_t last) {
  for_each_chunk(p, first, last, [&](const MomentumProblem::Tensor& t, int64_t begin, int64_t end, int64_t) {
    t.is_bf16 ? momentum_of<bf16>(p, t, begin, end) : momentum_of<float>(p, t, begin, end);
  });
}

void apply(const ApplyProblem& p, int64_t first, int64_t last) {
  for_each_chunk(p, first, last, [&](const ApplyProblem::Tensor t, int64_t begin, int64_t end, int64_t) {
    for (int64_t i = begin; i < end; i += kLanes) {
      const int64_t n = end - i;
      const Float w = fused(load_some(t.master + i, n), broadcast(t.keep), -(load_some(t.direction + i, n) * t.step));
      store_some(t.master + i, w, n);
      if (t.narrow) store_some(t.narrow + i, w, n);
    }
  });
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
