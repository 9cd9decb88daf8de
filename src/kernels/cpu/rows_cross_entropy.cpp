// The softmax cross-entropy of one row of logits.
#include "kernels/cpu/rows_cross_entropy.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

// The largest logit of a row and the sum of exp(logit - largest); the terms replace the logits when asked for.
struct Softmax {
  float largest, sum;
};
INGOT_INLINE Softmax exponentials(float* logits, int64_t vocab, bool write) {
  const int64_t whole = round_down(vocab, kLanes), rest = vocab - whole;
  Float top = broadcast(-__builtin_inff());
  for (int64_t i = 0; i < whole; i += kLanes) top = max(top, load(logits + i));
  float largest = max_of_lanes(top)[0];
  for (int64_t i = whole; i < vocab; ++i) largest = logits[i] > largest || logits[i] != logits[i] ? logits[i] : largest;
  // exp is taken once: what it gives is kept in place when the gradient is wanted.
  Float sums{};
  for (int64_t i = 0; i < whole; i += kLanes) {
    const Float e = exp(load(logits + i) - largest);
    if (write) store(logits + i, e);
    sums += e;
  }
  float sum = sum_of_lanes(sums)[0];
  if (rest > 0) {
    const Float e = exp(load_part(logits + whole, rest) - largest) * first_lanes(rest);
    if (write) store_part(logits + whole, e, rest);
    sum += sum_of_lanes(e)[0];
  }
  return {largest, sum};
}

template <class T>
void losses_and_gradient(const CrossEntropyProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* const logits = p.logits + row * p.logits_stride;
    T* const gradient = p.gradient ? static_cast<T*>(p.gradient) + row * p.gradient_stride : nullptr;
    const int64_t target = p.targets[row];
    if (target < 0) {
      p.losses[row] = 0;
      if (gradient) __builtin_memset(gradient, 0, static_cast<size_t>(p.vocab) * sizeof(T));
      continue;
    }
    const float at_target = logits[target];
    const auto [largest, sum] = exponentials(logits, p.vocab, gradient != nullptr);
    const float log_sum = __builtin_logf(sum) + largest;
    p.losses[row] = log_sum - at_target;
    if (!gradient) continue;
    const float scale = static_cast<float>(p.scale), factor = scale / sum * (1 + 2 * static_cast<float>(p.z_loss) * log_sum);
    const float of_target = logits[target] * factor - scale;
    for (int64_t i = 0; i < p.vocab; i += kLanes) store_some(gradient + i, load_some(logits + i, p.vocab - i) * factor, p.vocab - i);
    store_some(gradient + target, broadcast(of_target), 1);
  }
}

}  // namespace

void cross_entropy(const CrossEntropyProblem& p, int64_t begin, int64_t end) {
  p.gradient_is_bf16 ? losses_and_gradient<bf16>(p, begin, end) : losses_and_gradient<float>(p, begin, end);
}

void cross_entropy_part(const CrossEntropyPartProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float *logits = p.logits + row * p.logits_stride, *statistics = p.statistics + 3 * row;
    statistics[2] = p.targets[row] >= 0 ? logits[p.targets[row]] : 0;
    const auto [largest, sum] = exponentials(logits, p.vocab, p.write);
    statistics[0] = largest;
    statistics[1] = sum;
  }
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
