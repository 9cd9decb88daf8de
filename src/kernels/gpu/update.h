// Muon's updates of parameters on a GPU: cpu/rows_update.h has the problems. Bound by memory; a thread a vector, in a loop over the grid.
#pragma once

#include "kernels/cpu/rows_update.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

template <int count>
struct Momentum {
  static INGOT_DEVICE void run(const cpu::MomentumProblem& p) {
    using V = Vector<float, count>;
    const float mu = static_cast<float>(p.mu), scale = static_cast<float>(p.gradient_scale);
    const int64_t vectors = quotient(p.rows, count);
    for (int64_t i = block_index() * block_threads() + thread_index(); i < vectors; i += grid_blocks() * block_threads()) {
      V momentum = reinterpret_cast<V*>(p.momentum)[i], grad = reinterpret_cast<const V*>(p.grad)[i], direction;
      for (int k = 0; k < count; ++k) {
        momentum.at[k] = mu * momentum.at[k] + scale * grad.at[k];
        direction.at[k] = p.nesterov ? scale * grad.at[k] + mu * momentum.at[k] : momentum.at[k];
      }
      reinterpret_cast<V*>(p.momentum)[i] = momentum;
      reinterpret_cast<V*>(p.direction)[i] = direction;
    }
  }
};

template <int count>
struct ApplyDirection {
  static INGOT_DEVICE void run(const cpu::ApplyProblem& p) {
    using V = Vector<float, count>;
    const float keep = static_cast<float>(p.keep), step = static_cast<float>(p.step);
    const int64_t vectors = quotient(p.rows, count);
    for (int64_t i = block_index() * block_threads() + thread_index(); i < vectors; i += grid_blocks() * block_threads()) {
      V master = reinterpret_cast<V*>(p.master)[i];
      const V direction = reinterpret_cast<const V*>(p.direction)[i];
      Vector<Bf16, count> narrow;
      for (int k = 0; k < count; ++k) {
        master.at[k] = master.at[k] * keep - step * direction.at[k];
        from_float(master.at[k], narrow.at[k]);
      }
      reinterpret_cast<V*>(p.master)[i] = master;
      if (p.narrow != nullptr) reinterpret_cast<Vector<Bf16, count>*>(p.narrow)[i] = narrow;
    }
  }
};

template <template <int> class Kernel, class Problem, class Launcher>
auto launch_update(const Problem& p, bool are_aligned, const Launcher& launcher) {
  constexpr int kThreads = 256;
  const auto with = [&]<int count>(Constant<count>) {
    return launcher.template run<Kernel<count>>((p.rows / count + kThreads - 1) / kThreads, kThreads, p);
  };
  return are_aligned && p.rows % 4 == 0 ? with(Constant<4>{}) : with(Constant<1>{});
}

template <class Launcher>
auto momentum(const cpu::MomentumProblem& p, const Launcher& launcher) {
  return launch_update<Momentum>(p, is_aligned(p.momentum) && is_aligned(p.grad) && is_aligned(p.direction), launcher);
}
template <class Launcher>
auto apply_direction(const cpu::ApplyProblem& p, const Launcher& launcher) {
  return launch_update<ApplyDirection>(p, is_aligned(p.master) && is_aligned(p.direction) && is_aligned(p.narrow), launcher);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
