// Gated linear units.
#include "kernels/cpu/rows_activation.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

// act(g) = g * sigmoid(argument(g)), and d act / dg = s + g s (1 - s) slope(g).
template <Gate gate>
Float argument(Float g) {
  if constexpr (gate == Gate::silu) return g;
  else if constexpr (gate == Gate::clamped) return g * kClampedSlope;
  else return g * (broadcast(kGeluScale) + g * g * (kGeluScale * kGeluCubic));
}
template <Gate gate>
Float times_slope(Float x, Float g) {
  if constexpr (gate == Gate::silu) return x;
  else if constexpr (gate == Gate::clamped) return x * kClampedSlope;
  else return x * (broadcast(kGeluScale) + g * g * (3 * kGeluScale * kGeluCubic));
}

// What the gate sees of its input, and what multiplies of the other one.
template <Gate gate>
Float gate_of(Float g) {
  if constexpr (gate != Gate::clamped) return g;
  const Float limit = broadcast(kClampedLimit);
  return g > limit ? limit : g;
}
template <Gate gate>
Float up_of(Float u) {
  if constexpr (gate != Gate::clamped) return u;
  const Float limit = broadcast(kClampedLimit);
  return (u > limit ? limit : u < -limit ? -limit : u) + broadcast(1.0f);
}

template <class T, Gate kind>
void forward(const GluProblem p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width, *up = gate + p.width;
    T* out = static_cast<T*>(p.out) + row * p.width;
    const float weight = p.row_weight ? p.row_weight[row] : 1.0f;
    for_vectors(p.width, [&](int64_t i, auto n) {
      prefetch_ahead(gate + i), prefetch_ahead(up + i);
      const Float g = gate_of<kind>(load_some(gate + i, n));
      store_some(out + i, g * sigmoid(argument<kind>(g)) * up_of<kind>(load_some(up + i, n)) * weight, n);
    });
  }
}

template <class T, Gate kind>
void backward(const GluProblem p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width, *up = gate + p.width;
    const T* grad = static_cast<const T*>(p.grad) + row * p.width;
    T *grad_gate = static_cast<T*>(p.grad_gate_up) + row * 2 * p.width, *grad_up = grad_gate + p.width;
    const float weight = p.row_weight ? p.row_weight[row] : 1.0f;
    Float weighted{};
    for_vectors(p.width, [&](int64_t i, auto n) {
      prefetch_ahead(gate + i), prefetch_ahead(up + i), prefetch_ahead(grad + i);
      const Float gate_in = load_some(gate + i, n), up_in = load_some(up + i, n), d = load_some(grad + i, n);
      const Float g = gate_of<kind>(gate_in), u = up_of<kind>(up_in);
      const Float s = sigmoid(argument<kind>(g)), activated = g * s;
      weighted += d * activated * u;
      const Float dw = d * weight;
      Float by_gate = dw * u * (s + times_slope<kind>(activated * (broadcast(1.0f) - s), g)), by_up = dw * activated;
      if constexpr (kind == Gate::clamped) {
        const Float limit = broadcast(kClampedLimit);
        by_gate = gate_in > limit ? Float{} : by_gate;
        by_up = up_in > limit ? Float{} : up_in < -limit ? Float{} : by_up;
      }
      store_some(grad_gate + i, by_gate, n);
      store_some(grad_up + i, by_up, n);
    });
    if (p.row_weight) p.grad_row_weight[row] = sum_of_lanes(weighted)[0];
  }
}

// visit(kind) with the kind as a constant.
template <class Visit>
INGOT_INLINE void with_gate(Gate gate, const Visit& visit) {
  switch (gate) {
    case Gate::silu: return visit.template operator()<Gate::silu>();
    case Gate::gelu_tanh: return visit.template operator()<Gate::gelu_tanh>();
    case Gate::clamped: return visit.template operator()<Gate::clamped>();
  }
}

}  // namespace

void glu_forward(const GluProblem& p, int64_t begin, int64_t end) {
  with_gate(p.gate, [&]<Gate kind>() { p.is_bf16 ? forward<bf16, kind>(p, begin, end) : forward<float, kind>(p, begin, end); });
}
void glu_backward(const GluProblem& p, int64_t begin, int64_t end) {
  with_gate(p.gate, [&]<Gate kind>() { p.is_bf16 ? backward<bf16, kind>(p, begin, end) : backward<float, kind>(p, begin, end); });
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
