// Gated linear units on a GPU: cpu/rows_activation.h has the problem. Bound by memory: everything is read and written once, 16 bytes a
// thread where the width is a multiple of 8 (bf16) or 4 (fp32).
#pragma once

#include "kernels/cpu/rows_activation.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

// act(g) = g * sigmoid(argument(g)), and d act / dg = s + g s (1 - s) slope(g).
template <Gate gate>
INGOT_DEVICE float gate_argument(float g) {
  if constexpr (gate == Gate::silu) return g;
  else if constexpr (gate == Gate::clamped) return g * kClampedSlope;
  else return g * (kGeluScale + g * g * (kGeluScale * kGeluCubic));
}
template <Gate gate>
INGOT_DEVICE float times_gate_slope(float x, float g) {
  if constexpr (gate == Gate::silu) return x;
  else if constexpr (gate == Gate::clamped) return x * kClampedSlope;
  else return x * (kGeluScale + g * g * (3 * kGeluScale * kGeluCubic));
}

// What the gate sees of its input, and what multiplies of the other one.
template <Gate gate>
INGOT_DEVICE float gate_of(float g) {
  if constexpr (gate == Gate::clamped) return g > kClampedLimit ? kClampedLimit : g;
  else return g;
}
template <Gate gate>
INGOT_DEVICE float up_of(float u) {
  if constexpr (gate == Gate::clamped) return (u > kClampedLimit ? kClampedLimit : u < -kClampedLimit ? -kClampedLimit : u) + 1.0f;
  else return u;
}

/// A thread a vector, in a loop over the grid.
template <class T, int count, Gate gate_kind>
struct GluForward {
  static INGOT_DEVICE void run(const cpu::GluProblem& p) {
    using V = Vector<T, count>;
    const int64_t per_row = quotient(p.width, count), vectors = p.rows * per_row;
    for (int64_t i = block_index() * block_threads() + thread_index(); i < vectors; i += grid_blocks() * block_threads()) {
      const int64_t row = quotient(i, per_row), column = remainder(i, per_row);
      const V* const gates = static_cast<const V*>(p.gate_up) + 2 * row * per_row;
      const V gate = gates[column], up = gates[per_row + column];
      const float weight = p.row_weight ? p.row_weight[row] : 1.0f;
      V out;
      for (int k = 0; k < count; ++k) {
        const float g = gate_of<gate_kind>(to_float(gate.at[k]));
        from_float(g * sigmoid(gate_argument<gate_kind>(g)) * up_of<gate_kind>(to_float(up.at[k])) * weight, out.at[k]);
      }
      static_cast<V*>(p.out)[i] = out;
    }
  }
};

/// A block a row, whose sum is the gradient of its weight.
template <class T, int count, Gate gate_kind>
struct GluBackward {
  static INGOT_DEVICE void run(const cpu::GluProblem& p) {
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
          const float gate_in = to_float(gate.at[k]), up_in = to_float(up.at[k]), d = to_float(grad.at[k]);
          const float g = gate_of<gate_kind>(gate_in), u = up_of<gate_kind>(up_in);
          const bool is_clamped = gate_kind == Gate::clamped;
          const float s = sigmoid(gate_argument<gate_kind>(g)), activated = g * s;
          const float gate_grad = d * weight * u * (s + times_gate_slope<gate_kind>(activated * (1.0f - s), g));
          from_float(is_clamped && gate_in > kClampedLimit ? 0.0f : gate_grad, by_gate.at[k]);
          from_float(is_clamped && (up_in > kClampedLimit || up_in < -kClampedLimit) ? 0.0f : d * weight * activated, by_up.at[k]);
          sum += d * activated * u;
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
template <template <class, int, Gate> class Kernel, class Launcher>
auto launch_glu(const cpu::GluProblem& p, bool row_a_block, const Launcher& launcher) {
  constexpr int kThreads = 256;
  const auto with = [&]<class T, int count>(Vector<T, count>) {
    const int64_t per_row = p.width / count, blocks = row_a_block ? p.rows : (p.rows * per_row + kThreads - 1) / kThreads;
    if (p.gate == Gate::silu) return launcher.template run<Kernel<T, count, Gate::silu>>(blocks, kThreads, p);
    if (p.gate == Gate::clamped) return launcher.template run<Kernel<T, count, Gate::clamped>>(blocks, kThreads, p);
    return launcher.template run<Kernel<T, count, Gate::gelu_tanh>>(blocks, kThreads, p);
  };
  const bool are_aligned =
      is_aligned(p.gate_up) && is_aligned(row_a_block ? p.grad : p.out) && (!row_a_block || is_aligned(p.grad_gate_up));
  if (p.is_bf16) return are_aligned && p.width % 8 == 0 ? with(Vector<Bf16, 8>{}) : with(Vector<Bf16, 1>{});
  return are_aligned && p.width % 4 == 0 ? with(Vector<float, 4>{}) : with(Vector<float, 1>{});
}

template <class Launcher>
auto glu_forward(const cpu::GluProblem& p, const Launcher& launcher) {
  return launch_glu<GluForward>(p, /*row_a_block=*/false, launcher);
}
template <class Launcher>
auto glu_backward(const cpu::GluProblem& p, const Launcher& launcher) {
  return launch_glu<GluBackward>(p, /*row_a_block=*/true, launcher);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
