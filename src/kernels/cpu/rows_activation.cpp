// SwiGLU, and the softmax cross-entropy of one row of logits.
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
    p.losses[row] = __builtin_logf(sum) + largest - at_target;
    if (!p.write) continue;
    const float factor = static_cast<float>(p.scale) / sum;
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
