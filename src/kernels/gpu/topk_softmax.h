// The choice of a router behind its last matmul on a GPU: cpu/rows_topk_softmax.h has the problem. A row's logits lie in the registers of
// some threads of a wave, which find the best class top_k times by shuffles. Bound by memory and, of few rows, by the shuffles' latency.
#pragma once

#include "kernels/cpu/rows_topk_softmax.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// `lanes` threads have a row, `each` of them the classes lane, lane + lanes, lane + 2 lanes... Threads behind the last row come along
/// with that one's numbers, since shuffles want whole waves, and write nothing.
template <int lanes, int each>
struct RouterRow {
  static constexpr int kThreads = 256, kRows = kThreads / lanes;  // of a block
  int lane;
  bool is_own;
  int64_t row;
  float terms[each];   // exp(logit - largest), 0 behind the last class
  float largest, sum;  // of the row

  INGOT_DEVICE explicit RouterRow(int64_t rows)
      : lane(thread_index() % lanes), is_own(true), row(block_index() * kRows + thread_index() / lanes), terms{}, largest(0), sum(0) {
    if (row >= rows) row = rows - 1, is_own = false;
  }

  template <class Operation>
  static INGOT_DEVICE float reduce(float value) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) value = Operation::of(value, shuffle_xor(value, mask));
    return value;
  }

  INGOT_DEVICE int class_of(int i) const { return lane + i * lanes; }

  INGOT_DEVICE void load(const cpu::TopkSoftmaxProblem& p) {
    const int classes = static_cast<int>(p.classes);
    const float* const logits = p.logits + row * p.classes;
    float top = -float_of(0x7f800000u);
    INGOT_UNROLL
    for (int i = 0; i < each; ++i) {
      if (class_of(i) >= classes) continue;
      terms[i] = logits[class_of(i)];
      top = Max::of(top, terms[i]);
    }
    largest = reduce<Max>(top);
    float own = 0;
    INGOT_UNROLL
    for (int i = 0; i < each; ++i) {
      terms[i] = class_of(i) < classes ? exponential(terms[i] - largest) : 0.0f;
      own += terms[i];
    }
    sum = reduce<Sum>(own);
  }
};

/// The best class of a row that is not chosen yet.
struct BestClass {
  float score, index;

  INGOT_DEVICE void consider(float other_score, float other_index) {
    if (other_score > score || (other_score == score && other_index < index)) score = other_score, index = other_index;
  }
};

template <int lanes, int each>
struct TopkSoftmax {
  using Row = RouterRow<lanes, each>;
  static constexpr int kThreads = Row::kThreads;

  static INGOT_DEVICE void run(const cpu::TopkSoftmaxProblem& p) {
    Row r(p.rows);
    r.load(p);
    const int top_k = static_cast<int>(p.top_k);
    const float* const logits = p.logits + r.row * p.classes;
    int64_t* const choice = p.choice + r.row * p.top_k;
    float* const weight = p.weight + r.row * p.top_k;
    if (p.chooses) {
      score(p, r);
      uint32_t chosen = 0;  // a bit for each class of this thread
      for (int k = 0; k < top_k; ++k) {
        const int best = next(p, r, chosen);
        if (r.is_own && r.lane == k % lanes) choice[k] = best;  // the thread that reads it below
      }
    }
    float of_chosen = 0;
    if (r.is_own)
      for (int k = r.lane; k < top_k; k += lanes) {
        weight[k] = exponential(logits[choice[k]] - r.largest);
        of_chosen += weight[k];
      }
    const float whole = p.renormalises ? Row::template reduce<Sum>(of_chosen) : r.sum;
    if (r.is_own)
      for (int k = r.lane; k < top_k; k += lanes) weight[k] /= whole;
  }

  /// r.terms: now scores, of which NaN is the best.
  static INGOT_DEVICE void score(const cpu::TopkSoftmaxProblem& p, Row& r) {
    INGOT_UNROLL
    for (int i = 0; i < each; ++i) {
      if (r.class_of(i) >= p.classes) continue;
      const float score = r.terms[i] / r.sum + p.bias[r.class_of(i)];
      r.terms[i] = score != score ? float_of(0x7f800000u) : score;
    }
  }

  static INGOT_DEVICE int next(const cpu::TopkSoftmaxProblem& p, const Row& r, uint32_t& chosen) {
    BestClass best{-float_of(0x7f800000u), static_cast<float>(cpu::kMostRouterClasses)};
    INGOT_UNROLL
    for (int i = 0; i < each; ++i)
      if (r.class_of(i) < p.classes && (chosen >> i & 1u) == 0) best.consider(r.terms[i], static_cast<float>(r.class_of(i)));
    for (int mask = lanes / 2; mask > 0; mask /= 2) {
      const float score = shuffle_xor(best.score, mask), index = shuffle_xor(best.index, mask);
      best.consider(score, index);
    }
    const int found = static_cast<int>(best.index);
    if (found % lanes == r.lane) chosen |= 1u << (found / lanes);
    return found;
  }
};

template <int lanes, int each>
struct TopkSoftmaxBackward {
  using Row = RouterRow<lanes, each>;
  static constexpr int kThreads = Row::kThreads;

  static INGOT_DEVICE void run(const cpu::TopkSoftmaxProblem& p) {
    Row r(p.rows);
    if (!p.renormalises) r.load(p);
    if (!r.is_own) return;
    const int top_k = static_cast<int>(p.top_k);
    const int64_t* const choice = p.choice + r.row * p.top_k;
    const float *const weight = p.weight + r.row * p.top_k, *const upstream = p.grad_weight + r.row * p.top_k;
    float along = 0, grad[each] = {};
    for (int k = 0; k < top_k; ++k) along += weight[k] * upstream[k];
    for (int k = 0; k < top_k; ++k) {
      const int chosen = static_cast<int>(choice[k]);
      const float by_chosen = p.renormalises ? weight[k] * (upstream[k] - along) : upstream[k];
      INGOT_UNROLL
      for (int i = 0; i < each; ++i) grad[i] += chosen == r.class_of(i) ? by_chosen : 0.0f;
    }
    float* const out = p.grad_logits + r.row * p.classes;
    INGOT_UNROLL
    for (int i = 0; i < each; ++i)
      if (r.class_of(i) < p.classes) out[r.class_of(i)] = p.renormalises ? grad[i] : r.terms[i] / r.sum * (grad[i] - along);
  }
};

template <template <int, int> class Kernel, class Launcher>
auto launch_topk_softmax(const cpu::TopkSoftmaxProblem& p, const Launcher& launcher) {
  const auto with = [&]<class Of>(Of) {
    return launcher.template run<Of>((p.rows + Of::Row::kRows - 1) / Of::Row::kRows, Of::kThreads, p);
  };
  if (p.classes <= 8) return with(Kernel<8, 1>{});
  if (p.classes <= 32) return with(Kernel<32, 1>{});
  if (p.classes <= 64) return with(Kernel<32, 2>{});
  if (p.classes <= 128) return with(Kernel<32, 4>{});
  if (p.classes <= 256) return with(Kernel<32, 8>{});
  return with(Kernel<32, 16>{});
}

template <class Launcher>
auto topk_softmax(const cpu::TopkSoftmaxProblem& p, const Launcher& launcher) {
  return launch_topk_softmax<TopkSoftmax>(p, launcher);
}
template <class Launcher>
auto topk_softmax_backward(const cpu::TopkSoftmaxProblem& p, const Launcher& launcher) {
  return launch_topk_softmax<TopkSoftmaxBackward>(p, launcher);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
