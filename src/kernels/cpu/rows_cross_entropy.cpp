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

}  // namespace

void cross_entropy(const CrossEntropyProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    float* logits = p.logits + row * p.logits_stride;
    const int64_t target = p.targets[row];
    if (target < 0) {
      p.losses[row] = 0;
      if (p.write)
        for (int64_t i = 0; i < p.vocab; ++i) logits[i] = 0;
      continue;
    }
    const float at_target = logits[target];
    const auto [largest, sum] = exponentials(logits, p.vocab, p.write);
    const float log_sum = __builtin_logf(sum) + largest;
    p.losses[row] = log_sum - at_target;
    if (!p.write) continue;
    const float factor = static_cast<float>(p.scale) / sum * (1 + 2 * static_cast<float>(p.z_loss) * log_sum);
    const int64_t whole = round_down(p.vocab, kLanes);
    for (int64_t i = 0; i < whole; i += kLanes) store(logits + i, load(logits + i) * factor);
    for (int64_t i = whole; i < p.vocab; ++i) logits[i] *= factor;
    logits[target] -= static_cast<float>(p.scale);
  }
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
