// SwiGLU on a GPU: cpu/rows_activation.h has the problem. Bound by memory: everything is read and written once, 16 bytes a thread where the
// width is a multiple of 8 (bf16) or 4 (fp32).
#pragma once

#include "kernels/cpu/rows_activation.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// A thread a vector, in a loop over the grid.
template <class T, int count>
struct SwigluForward {
  static INGOT_DEVICE void run(const cpu::SwigluProblem& p) {
    using V = Vector<T, count>;
    const int64_t per_row = quotient(p.width, count), vectors = p.rows * per_row;
    for (int64_t i = block_index() * block_threads() + thread_index(); i < vectors; i += grid_blocks() * block_threads()) {
      const int64_t row = quotient(i, per_row), column = remainder(i, per_row);
      const V* const gates = static_cast<const V*>(p.gate_up) + 2 * row * per_row;
      const V gate = gates[column], up = gates[per_row + column];
      const float weight = p.row_weight ? p.row_weight[row] : 1.0f;
      V out;
      for (int k = 0; k < count; ++k) {
        const float g = to_float(gate.at[k]);
        from_float(g * sigmoid(g) * to_float(up.at[k]) * weight, out.at[k]);
      }
      static_cast<V*>(p.out)[i] = out;
    }
  }
};

/// A block a row, whose sum is the gradient of its weight.
template <class T, int count>
struct SwigluBackward {
  static INGOT_DEVICE void run(const cpu::SwigluProblem& p) {
    using V = Vector<T, count>;
    const int64_t per_row = quotient(p.width, count);
    for (int64_t row = block_index(); row < p.rows; row += grid_blocks()) {
      const V* const gates = static_cast<const V*>(p.gate_up) + 2 * row * per_row;
      V* const grads = static_cast<V*>(p.grad_gate_up) + 2 * row * per_row;
      const float weight = p.row_weight ? p.row_weight[row] : 1.0f;
      float sum = 0;
      for (int64_t column = thread_index(); column < per_row; column += block_threads()) {
        const V gate = gates[column], up = gates[per_row + column], grad = static_cast<const V*>(p.grad)[row * per_row + column];
        V by_gate, by_up;
        for (int k = 0; k < count; ++k) {
          const float g = to_float(gate.at[k]), u = to_float(up.at[k]), d = to_float(grad.at[k]);
          const float s = sigmoid(g), silu = g * s;
          from_float(d * weight * u * (s + silu * (1.0f - s)), by_gate.at[k]);
          from_float(d * weight * silu, by_up.at[k]);
          sum += d * silu * u;
        }
        grads[column] = by_gate;
        grads[per_row + column] = by_up;
      }
      if (p.grad_row_weight == nullptr) continue;
      sum = block_sum(sum);
      if (thread_index() == 0) p.grad_row_weight[row] = sum;
    }
  }
};

/// launcher.template run<Kernel>(blocks, threads, problem), with the widest vectors that fit.
template <template <class, int> class Kernel, class Launcher>
auto launch_swiglu(const cpu::SwigluProblem& p, bool row_a_block, const Launcher& launcher) {
  constexpr int kThreads = 256;
  const auto with = [&]<class T, int count>(Vector<T, count>) {
    const int64_t per_row = p.width / count, blocks = row_a_block ? p.rows : (p.rows * per_row + kThreads - 1) / kThreads;
    return launcher.template run<Kernel<T, count>>(blocks, kThreads, p);
  };
  const bool are_aligned =
      is_aligned(p.gate_up) && is_aligned(row_a_block ? p.grad : p.out) && (!row_a_block || is_aligned(p.grad_gate_up));
  if (p.is_bf16) return are_aligned && p.width % 8 == 0 ? with(Vector<Bf16, 8>{}) : with(Vector<Bf16, 1>{});
  return are_aligned && p.width % 4 == 0 ? with(Vector<float, 4>{}) : with(Vector<float, 1>{});
}

template <class Launcher>
auto swiglu_forward(const cpu::SwigluProblem& p, const Launcher& launcher) {
  return launch_swiglu<SwigluForward>(p, /*row_a_block=*/false, launcher);
}
template <class Launcher>
auto swiglu_backward(const cpu::SwigluProblem& p, const Launcher& launcher) {
  return launch_swiglu<SwigluBackward>(p, /*row_a_block=*/true, launcher);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
