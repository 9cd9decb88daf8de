// The short convolution with its SiLU: each token reads the few before it, which are still in the cache.
#include "kernels/cpu/rows_short_convolution.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

using Problem = ShortConvolutionProblem;

// How many ages a token sees: itself, and those before it up to the start of its document.
INGOT_INLINE int64_t seen(const Problem& p, int64_t row) {
  if (!p.is_start) return p.width;
  const int64_t own = row % p.seq;
  for (int64_t ages = 1; ages < p.width; ++ages) {
    if (ages > own + 1) return p.width;  // no start up to the beginning of the row: the tail is seen
    if (p.is_start[row - ages + 1]) return ages;
  }
  return p.width;
}

// The tokens that a row sees by age; null where there is none.
template <class T>
struct Sources {
  const T* of[Problem::kMostTaps];
  int64_t ages;

  Sources(const Problem& p, int64_t row) : ages(seen(p, row)) {
    const int64_t batch = row / p.seq, token = row % p.seq;
    for (int64_t age = 0; age < ages; ++age) {
      const int64_t before = token - age;
      if (before >= 0) of[age] = static_cast<const T*>(p.x) + (row - age) * p.channels;
      else of[age] = p.tail ? static_cast<const T*>(p.tail) + (batch * (p.width - 1) + p.width - 1 + before) * p.channels : nullptr;
    }
    while (ages > 0 && !of[ages - 1]) --ages;
  }
};

// Whether each of `count` rows sees a token of every age, all of them rows of x.
INGOT_INLINE bool see_all(const Problem& p, int64_t row, int64_t count) {
  const int64_t own = row % p.seq;
  if (own < p.width - 1 || own + count > p.seq) return false;
  if (!p.is_start) return true;
  for (int64_t at = row - p.width + 2; at < row + count; ++at)
    if (p.is_start[at]) return false;
  return true;
}

// Rows that see all of kTaps tokens are worked on kBlock at a time, a channel's weights and sums in registers: to the same bits as one row
// after the other.
constexpr int64_t kTaps = 4, kBlock = 4;

// Those of the block's first row's taps but the youngest, then the block's own: row r sees at age a what lies at kTaps - 1 + r - a.
struct Window {
  Float at[kTaps - 1 + kBlock];
};

template <class T>
INGOT_INLINE Window load_window(const T* first, int64_t step, int64_t n) {
  Window window;
#pragma GCC unroll 8
  for (int64_t i = 0; i < kTaps - 1 + kBlock; ++i) window.at[i] = load_some(first + i * step, n);
  return window;
}

INGOT_INLINE Float sum_of(const Window& seen, const Float (&weight)[kTaps], int64_t row) {
  Float sum{};
#pragma GCC unroll 8
  for (int64_t age = 0; age < kTaps; ++age) sum = fused(seen.at[kTaps - 1 + row - age], weight[age], sum);
  return sum;
}

template <class T>
INGOT_INLINE Float sum_of(const Problem& p, const Sources<T>& sources, int64_t channel, int64_t n) {
  const float* newest = p.weight + (p.width - 1) * p.channels + channel;
  Float sum{};
  for (int64_t age = 0; age < sources.ages; ++age)
    sum = fused(load_some(sources.of[age] + channel, n), load_some(newest - age * p.channels, n), sum);
  return sum;
}

// Of `values` [kTaps, channels], by age.
INGOT_INLINE void load_taps(const float* values, int64_t channels, int64_t n, Float (&of_age)[kTaps]) {
#pragma GCC unroll 8
  for (int64_t age = 0; age < kTaps; ++age) of_age[age] = load_some(values + (kTaps - 1 - age) * channels, n);
}

template <class T>
INGOT_INLINE void forward_of_block(const Problem& p, int64_t row) {
  const T* oldest = static_cast<const T*>(p.x) + (row - (kTaps - 1)) * p.channels;
  T* out = static_cast<T*>(p.out) + row * p.channels;
  for_vectors(p.channels, [&](int64_t i, auto n) {
    Float weight[kTaps];
    load_taps(p.weight + i, p.channels, n, weight);
    const Window seen = load_window(oldest + i, p.channels, n);
    for (int64_t r = 0; r < kBlock; ++r) prefetch(oldest + (kTaps - 1 + kBlock + r) * p.channels + i);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kBlock; ++r) {
      const Float sum = sum_of(seen, weight, r);
      store_some(out + r * p.channels + i, sum * sigmoid(sum), n);
    }
  });
}

template <class T>
INGOT_INLINE void forward_of_row(const Problem& p, int64_t row) {
  const Sources<T> sources(p, row);
  T* out = static_cast<T*>(p.out) + row * p.channels;
  for_vectors(p.channels, [&](int64_t i, auto n) {
    const Float sum = sum_of(p, sources, i, n);
    store_some(out + i, sum * sigmoid(sum), n);
  });
}

template <class T>
void forward(const Problem p, int64_t begin, int64_t end) {  // p by value: no store can change it
  for (int64_t row = begin; row < end;) {
    if (p.width == kTaps && row + kBlock <= end && see_all(p, row, kBlock)) {
      forward_of_block<T>(p, row);
      row += kBlock;
    } else {
      forward_of_row<T>(p, row++);
    }
  }
}

constexpr int64_t kChunk = 2048;  // channels that go through the rows together, so that their gradients of sums stay in the cache

// Gradients of sums of the last `width` rows, row r's at r % width.
struct GradSums {
  float of[Problem::kMostTaps][kChunk];
};

// silu(sum)' * grad.
INGOT_INLINE Float silu_backward(Float sum, Float grad) {
  const Float s = sigmoid(sum);
  return grad * fused(sum * s, broadcast(1.0f) - s, s);
}

// The gradients of the sums of a row's channels [first, first + channels); `sums` of the weight where the row counts for them.
template <class T>
INGOT_INLINE void sums_backward(const Problem& p, int64_t row, int64_t first, int64_t channels, float* grad_sum, float* sums) {
  const Sources<T> sources(p, row);
  const T* grad = static_cast<const T*>(p.grad) + row * p.channels + first;
  for_vectors(channels, [&](int64_t i, auto n) {
    const Float g = silu_backward(sum_of(p, sources, first + i, n), load_some(grad + i, n));
    store_some(grad_sum + i, g, n);
    if (!sums) return;
    for (int64_t age = 0; age < sources.ages; ++age) {
      float* sum = sums + (p.width - 1 - age) * p.channels + first + i;
      store_some(sum, fused(g, load_some(sources.of[age] + first + i, n), load_some(sum, n)), n);
    }
  });
}

template <class T>
INGOT_INLINE void x_backward(const Problem& p, int64_t row, int64_t first, int64_t channels, const GradSums& grad_sums) {
  // Those behind it that see it.
  int64_t readers = 1;
  const int64_t most = smaller(p.width, p.seq - row % p.seq);
  while (readers < most && seen(p, row + readers) > readers) ++readers;
  const float* weight = p.weight + (p.width - 1) * p.channels + first;
  T* grad_x = static_cast<T*>(p.grad_x) + row * p.channels + first;
  for_vectors(channels, [&](int64_t i, auto n) {
    Float g{};
    for (int64_t age = 0; age < readers; ++age)
      g = fused(load_some(grad_sums.of[(row + age) % p.width] + i, n), load_some(weight - age * p.channels + i, n), g);
    store_some(grad_x + i, g, n);
  });
}

// sums_backward of a block's rows, and x_backward of those that these are the last to see.
template <class T>
INGOT_INLINE void backward_of_block(const Problem& p, int64_t row, int64_t first, int64_t channels, GradSums& grad_sums, float* sums) {
  const int64_t oldest = (row - (kTaps - 1)) * p.channels + first;
  const T *x = static_cast<const T*>(p.x) + oldest, *grad = static_cast<const T*>(p.grad) + row * p.channels + first;
  T* grad_x = static_cast<T*>(p.grad_x) + oldest;
  static_assert(kBlock % kTaps == 0, "the last rows of a block replace those of the one before it");
  float* kept[kTaps - 1];
  for (int64_t i = 0; i < kTaps - 1; ++i) kept[i] = grad_sums.of[(row + 1 + i) % kTaps];
  for_vectors(channels, [&](int64_t i, auto n) {
    Float weight[kTaps], of_weight[kTaps];
    load_taps(p.weight + first + i, p.channels, n, weight);
    load_taps(sums + first + i, p.channels, n, of_weight);
    const Window seen = load_window(x + i, p.channels, n);
    Window g;  // as `seen`, of the gradients of sums
#pragma GCC unroll 8
    for (int64_t j = 0; j < kTaps - 1; ++j) g.at[j] = load_some(kept[j] + i, n);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kBlock; ++r) {
      const Float of_sum = silu_backward(sum_of(seen, weight, r), load_some(grad + r * p.channels + i, n));
#pragma GCC unroll 8
      for (int64_t age = 0; age < kTaps; ++age) of_weight[age] = fused(of_sum, seen.at[kTaps - 1 + r - age], of_weight[age]);
      g.at[kTaps - 1 + r] = of_sum;
      Float of_x{};
#pragma GCC unroll 8
      for (int64_t age = 0; age < kTaps; ++age) of_x = fused(g.at[r + age], weight[age], of_x);
      store_some(grad_x + r * p.channels + i, of_x, n);
    }
#pragma GCC unroll 8
    for (int64_t age = 0; age < kTaps; ++age) store_some(sums + (kTaps - 1 - age) * p.channels + first + i, of_weight[age], n);
#pragma GCC unroll 8
    for (int64_t j = 0; j < kTaps - 1; ++j) store_some(kept[j] + i, g.at[kBlock + j], n);
  });
}

// Rows behind the last one are worked on for the gradients that they hand back.
template <class T>
void backward(const Problem p, int64_t begin, int64_t end, float* sums) {
  GradSums grad_sums;
  for (int64_t first = 0; first < p.channels; first += kChunk) {
    const int64_t channels = smaller(kChunk, p.channels - first);
    for (int64_t row = begin; row < end + p.width - 1;) {
      const int64_t done = row - (p.width - 1);
      if (p.width == kTaps && done >= begin && row + kBlock <= end && see_all(p, row, kBlock)) {
        backward_of_block<T>(p, row, first, channels, grad_sums, sums);
        row += kBlock;
        continue;
      }
      if (row < p.rows) sums_backward<T>(p, row, first, channels, grad_sums.of[row % p.width], row < end ? sums : nullptr);
      if (done >= begin) x_backward<T>(p, done, first, channels, grad_sums);
      ++row;
    }
  }
}

}  // namespace

void short_convolution_forward(const Problem& p, int64_t begin, int64_t end) {
  p.is_bf16 ? forward<bf16>(p, begin, end) : forward<float>(p, begin, end);
}
void short_convolution_backward(const Problem& p, int64_t begin, int64_t end, float* sums) {
  p.is_bf16 ? backward<bf16>(p, begin, end, sums) : backward<float>(p, begin, end, sums);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
