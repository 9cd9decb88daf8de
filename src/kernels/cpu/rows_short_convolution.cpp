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

template <class T>
INGOT_INLINE Float sum_of(const Problem& p, const Sources<T>& sources, int64_t i, int64_t n) {
  const float* newest = p.weight + (p.width - 1) * p.channels;
  Float sum{};
  for (int64_t age = 0; age < sources.ages; ++age) sum += load_some(sources.of[age] + i, n) * load_some(newest - age * p.channels + i, n);
  return sum;
}

template <class T>
void forward(const Problem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const Sources<T> sources(p, row);
    T* out = static_cast<T*>(p.out) + row * p.channels;
    for (int64_t i = 0; i < p.channels; i += kLanes) {
      const int64_t n = p.channels - i;
      const Float sum = sum_of(p, sources, i, n);
      store_some(out + i, sum * sigmoid(sum), n);
    }
  }
}

constexpr int64_t kChunk = 2048;  // channels that go through the rows together, so that their gradients of sums stay in the cache

// The gradients of the sums of a row's channels [first, first + channels); `sums` of the weight where the row counts for them.
template <class T>
INGOT_INLINE void sums_backward(const Problem& p, int64_t row, int64_t first, int64_t channels, float* grad_sum, float* sums) {
  const Sources<T> sources(p, row);
  const T* grad = static_cast<const T*>(p.grad) + row * p.channels;
  for (int64_t i = 0; i < channels; i += kLanes) {
    const int64_t n = channels - i, channel = first + i;
    const Float sum = sum_of(p, sources, channel, n), s = sigmoid(sum), silu = sum * s;
    const Float g = load_some(grad + channel, n) * (s + silu * (broadcast(1.0f) - s));
    store_some(grad_sum + i, g, n);
    if (!sums) continue;
    float* newest = sums + (p.width - 1) * p.channels;
    for (int64_t age = 0; age < sources.ages; ++age)
      add_to(newest - age * p.channels, channel, g * load_some(sources.of[age] + channel, n), n);
  }
}

// `grad_sums`: of the last rows, row r's at r % kMostTaps.
template <class T>
INGOT_INLINE void x_backward(const Problem& p, int64_t row, int64_t first, int64_t channels, const float (*grad_sums)[kChunk]) {
  // Those behind it that see it.
  int64_t readers = 1;
  const int64_t most = smaller(p.width, p.seq - row % p.seq);
  while (readers < most && seen(p, row + readers) > readers) ++readers;
  const float* weight = p.weight + (p.width - 1) * p.channels + first;
  T* grad_x = static_cast<T*>(p.grad_x) + row * p.channels + first;
  for (int64_t i = 0; i < channels; i += kLanes) {
    const int64_t n = channels - i;
    Float g{};
    for (int64_t age = 0; age < readers; ++age)
      g += load_some(grad_sums[(row + age) % Problem::kMostTaps] + i, n) * load_some(weight - age * p.channels + i, n);
    store_some(grad_x + i, g, n);
  }
}

// Rows behind the last one are worked on for the gradients that they hand back.
template <class T>
void backward(const Problem& p, int64_t begin, int64_t end, float* sums) {
  float grad_sums[Problem::kMostTaps][kChunk];
  for (int64_t first = 0; first < p.channels; first += kChunk) {
    const int64_t channels = smaller(kChunk, p.channels - first);
    for (int64_t row = begin; row < end + p.width - 1; ++row) {
      if (row < p.rows) sums_backward<T>(p, row, first, channels, grad_sums[row % Problem::kMostTaps], row < end ? sums : nullptr);
      const int64_t done = row - (p.width - 1);
      if (done >= begin) x_backward<T>(p, done, first, channels, grad_sums);
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
