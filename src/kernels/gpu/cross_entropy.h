// The softmax cross-entropy of rows of logits on a GPU: cpu/rows_cross_entropy.h has the problem. A block a row, which it reads twice (the
// second time from the L2 cache) and writes once.
#pragma once

#include "kernels/cpu/rows_cross_entropy.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// The largest logit of a block's row and the sum of exp(logit - largest), on all of its threads.
struct Softmax {
  float largest, sum;
};
template <int count>
INGOT_DEVICE Softmax softmax_of(const Vector<float, count>* logits, int64_t vectors) {
  float largest = -3.0e38f, sum = 0;  // as far as this thread has come
  for (int64_t i = thread_index(); i < vectors; i += block_threads()) {
    const Vector<float, count> x = logits[i];
    float top = largest;
    for (int k = 0; k < count; ++k) top = x.at[k] > top ? x.at[k] : top;
    sum *= exponential(largest - top);
    for (int k = 0; k < count; ++k) sum += exponential(x.at[k] - top);
    largest = top;
  }
  const float of_row = block_max(largest);
  return {of_row, block_sum(sum * exponential(largest - of_row))};
}

template <class T, int count>
struct CrossEntropy {
  using V = Vector<float, count>;
  using G = Vector<T, count>;

  static INGOT_DEVICE void run(const cpu::CrossEntropyProblem& p) {
    const int64_t row = block_index(), target = p.targets[row], vectors = quotient(p.vocab, count);
    float* const logits = p.logits + row * p.logits_stride;
    const V* const by_vector = reinterpret_cast<const V*>(logits);
    G* const gradient = p.gradient ? reinterpret_cast<G*>(static_cast<T*>(p.gradient) + row * p.gradient_stride) : nullptr;
    if (target < 0) {  // for all threads alike
      if (thread_index() == 0) p.losses[row] = 0;
      if (gradient)
        for (int64_t i = thread_index(); i < vectors; i += block_threads()) gradient[i] = G{};
      return;
    }
    const float at_target = logits[target];
    const auto [of_row, sum] = softmax_of<count>(by_vector, vectors);  // every thread has read the target's logit before one is written
    const float log_sum = logarithm(sum) + of_row;
    if (thread_index() == 0) p.losses[row] = log_sum - at_target;
    if (!gradient) return;
    const float scale = static_cast<float>(p.scale), factor = scale / sum * (1.0f + 2.0f * static_cast<float>(p.z_loss) * log_sum);
    for (int64_t i = thread_index(); i < vectors; i += block_threads()) {
      const V x = by_vector[i];
      G out;
      for (int k = 0; k < count; ++k)
        from_float(exponential(x.at[k] - of_row) * factor - (i * count + k == target ? scale : 0.0f), out.at[k]);
      gradient[i] = out;
    }
  }
};

template <int count>
struct CrossEntropyPart {
  static INGOT_DEVICE void run(const cpu::CrossEntropyPartProblem& p) {
    using V = Vector<float, count>;
    const int64_t row = block_index(), target = p.targets[row], vectors = quotient(p.vocab, count);
    float* const logits = p.logits + row * p.logits_stride;
    V* const by_vector = reinterpret_cast<V*>(logits);
    const float at_target = target >= 0 ? logits[target] : 0.0f;
    const auto [of_row, sum] = softmax_of<count>(by_vector, vectors);
    if (thread_index() == 0) {
      float* const statistics = p.statistics + 3 * row;
      statistics[0] = of_row;
      statistics[1] = sum;
      statistics[2] = at_target;
    }
    if (!p.write) return;
    for (int64_t i = thread_index(); i < vectors; i += block_threads()) {
      V x = by_vector[i];
      for (int k = 0; k < count; ++k) x.at[k] = exponential(x.at[k] - of_row);
      by_vector[i] = x;
    }
  }
};

inline constexpr int kCrossEntropyThreads = 512;

template <class T, class Launcher>
auto cross_entropy_of(const cpu::CrossEntropyProblem& p, const Launcher& launcher) {
  const bool has_vectors =
      p.vocab % 4 == 0 && p.logits_stride % 4 == 0 && p.gradient_stride % 4 == 0 && is_aligned(p.logits) && is_aligned(p.gradient);
  return has_vectors ? launcher.template run<CrossEntropy<T, 4>>(p.rows, kCrossEntropyThreads, p)
                     : launcher.template run<CrossEntropy<T, 1>>(p.rows, kCrossEntropyThreads, p);
}
template <class Launcher>
auto cross_entropy(const cpu::CrossEntropyProblem& p, const Launcher& launcher) {
  return p.gradient_is_bf16 ? cross_entropy_of<Bf16>(p, launcher) : cross_entropy_of<float>(p, launcher);
}
template <class Launcher>
auto cross_entropy_part(const cpu::CrossEntropyPartProblem& p, const Launcher& launcher) {
  const bool has_vectors = p.vocab % 4 == 0 && p.logits_stride % 4 == 0 && is_aligned(p.logits);
  return has_vectors ? launcher.template run<CrossEntropyPart<4>>(p.rows, kCrossEntropyThreads, p)
                     : launcher.template run<CrossEntropyPart<1>>(p.rows, kCrossEntropyThreads, p);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
