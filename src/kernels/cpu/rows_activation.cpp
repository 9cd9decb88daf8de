// Gated linear units.
#include "kernels/cpu/rows_activation.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

// act(g) = g * sigmoid(argument(g)), and d act / dg = s + g s (1 - s) slope(g).
template <Gate gate>
Float argument(Float g) {
  if constexpr (gate == Gate::silu) return g;
  else return g * (broadcast(kGeluScale) + g * g * (kGeluScale * kGeluCubic));
}
template <Gate gate>
Float times_slope(Float x, Float g) {
  if constexpr (gate == Gate::silu) return x;
  else return x * (broadcast(kGeluScale) + g * g * (3 * kGeluScale * kGeluCubic));
}

template <class T, Gate kind>
void forward(const GluProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width, *up = gate + p.width;
    T* out = static_cast<T*>(p.out) + row * p.width;
    const float weight = p.row_weight ? p.row_weight[row] : 1.0f;
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t n = p.width - i;
      const Float g = load_some(gate + i, n);
      store_some(out + i, g * sigmoid(argument<kind>(g)) * load_some(up + i, n) * weight, n);
    }
  }
}

template <class T, Gate kind>
void backward(const GluProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width, *up = gate + p.width;
    const T* grad = static_cast<const T*>(p.grad) + row * p.width;
    T *grad_gate = static_cast<T*>(p.grad_gate_up) + row * 2 * p.width, *grad_up = grad_gate + p.width;
    const float weight = p.row_weight ? p.row_weight[row] : 1.0f;
    Float weighted{};
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t n = p.width - i;
      const Float g = load_some(gate + i, n), u = load_some(up + i, n), d = load_some(grad + i, n);
      const Float s = sigmoid(argument<kind>(g)), activated = g * s;
      weighted += d * activated * u;
      const Float dw = d * weight;
      store_some(grad_gate + i, dw * u * (s + times_slope<kind>(activated * (broadcast(1.0f) - s), g)), n);
      store_some(grad_up + i, dw * activated, n);
    }
    if (p.row_weight) p.grad_row_weight[row] = sum_of_lanes(weighted)[0];
  }
}

}  // namespace

void glu_forward(const GluProblem& p, int64_t begin, int64_t end) {
  if (p.gate == Gate::silu) p.is_bf16 ? forward<bf16, Gate::silu>(p, begin, end) : forward<float, Gate::silu>(p, begin, end);
  else p.is_bf16 ? forward<bf16, Gate::gelu_tanh>(p, begin, end) : forward<float, Gate::gelu_tanh>(p, begin, end);
}
void glu_backward(const GluProblem& p, int64_t begin, int64_t end) {
  if (p.gate == Gate::silu) p.is_bf16 ? backward<bf16, Gate::silu>(p, begin, end) : backward<float, Gate::silu>(p, begin, end);
  else p.is_bf16 ? backward<bf16, Gate::gelu_tanh>(p, begin, end) : backward<float, Gate::gelu_tanh>(p, begin, end);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
