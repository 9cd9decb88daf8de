// The softmax cross-entropy of rows of logits on a GPU: cpu/rows_cross_entropy.h has the problem. A block a row, which it reads twice (the
// second time from the L2 cache) and writes once.
#pragma once

#include "kernels/cpu/rows_cross_entropy.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

template <int count>
struct CrossEntropy {
  using V = Vector<float, count>;

  static INGOT_DEVICE void run(const cpu::CrossEntropyProblem& p) {
    const int64_t row = block_index(), target = p.targets[row], vectors = p.vocab / count;
    float* const logits = p.logits + row * p.logits_stride;
    V* const by_vector = reinterpret_cast<V*>(logits);
    if (target < 0) {  // for all threads alike
      if (thread_index() == 0) p.losses[row] = 0;
      if (p.write)
        for (int64_t i = thread_index(); i < p.vocab; i += block_threads()) logits[i] = 0;
      return;
    }
    const float at_target = logits[target];
    float largest = -3.0e38f, sum = 0;  // of exp(logit - largest), as far as this thread has come
    for (int64_t i = thread_index(); i < vectors; i += block_threads()) {
      const V x = by_vector[i];
      float top = largest;
      for (int k = 0; k < count; ++k) top = x.at[k] > top ? x.at[k] : top;
      sum *= exponential(largest - top);
      for (int k = 0; k < count; ++k) sum += exponential(x.at[k] - top);
      largest = top;
    }
    const float of_row = block_max(largest);
    sum = block_sum(sum * exponential(largest - of_row));  // every thread has read the target's logit before one is written
    if (thread_index() == 0) p.losses[row] = logarithm(sum) + of_row - at_target;
    if (!p.write) return;
    const float scale = static_cast<float>(p.scale), factor = scale / sum;
    for (int64_t i = thread_index(); i < vectors; i += block_threads()) {
      V x = by_vector[i];
      for (int k = 0; k < count; ++k) x.at[k] = exponential(x.at[k] - of_row) * factor - (i * count + k == target ? scale : 0.0f);
      by_vector[i] = x;
    }
  }
};

template <class Launcher>
auto cross_entropy(const cpu::CrossEntropyProblem& p, const Launcher& launcher) {
  constexpr int kThreads = 512;
  if (p.vocab % 4 == 0 && p.logits_stride % 4 == 0 && is_aligned(p.logits))
    return launcher.template run<CrossEntropy<4>>(p.rows, kThreads, p);
  return launcher.template run<CrossEntropy<1>>(p.rows, kThreads, p);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
