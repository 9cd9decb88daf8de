// SwiGLU.
#include "kernels/cpu/rows_activation.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

template <class T>
void forward(const SwigluProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width, *up = gate + p.width;
    T* out = static_cast<T*>(p.out) + row * p.width;
    const float weight = p.row_weight ? p.row_weight[row] : 1.0f;
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t n = p.width - i;
      const Float g = load_some(gate + i, n);
      store_some(out + i, g * sigmoid(g) * load_some(up + i, n) * weight, n);
    }
  }
}

template <class T>
void backward(const SwigluProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const T *gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width, *up = gate + p.width;
    const T* grad = static_cast<const T*>(p.grad) + row * p.width;
    T *grad_gate = static_cast<T*>(p.grad_gate_up) + row * 2 * p.width, *grad_up = grad_gate + p.width;
    const float weight = p.row_weight ? p.row_weight[row] : 1.0f;
    Float weighted{};
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t n = p.width - i;
      const Float g = load_some(gate + i, n), u = load_some(up + i, n), d = load_some(grad + i, n);
      const Float s = sigmoid(g), silu = g * s;
      weighted += d * silu * u;
      const Float dw = d * weight;
      store_some(grad_gate + i, dw * u * (s + silu * (broadcast(1.0f) - s)), n);
      store_some(grad_up + i, dw * silu, n);
    }
    if (p.row_weight) p.grad_row_weight[row] = sum_of_lanes(weighted)[0];
  }
}

}  // namespace

void swiglu_forward(const SwigluProblem& p, int64_t begin, int64_t end) {
  p.is_bf16 ? forward<bf16>(p, begin, end) : forward<float>(p, begin, end);
}
void swiglu_backward(const SwigluProblem& p, int64_t begin, int64_t end) {
  p.is_bf16 ? backward<bf16>(p, begin, end) : backward<float>(p, begin, end);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
