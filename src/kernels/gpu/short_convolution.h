// The short convolution of each channel with its SiLU on a GPU: cpu/rows_short_convolution.h has the problem. Bound by memory: a thread
// walks down a run of tokens with a vector of channels and keeps what the taps see in registers, so that a token is read once, and again by
// the runs beside its own where it lies at their border. Backward the gradients of the sums go from the registers to grad_x, never to
// memory.
#pragma once

#include "kernels/cpu/rows_short_convolution.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

constexpr int kShortConvolutionThreads = 128, kShortConvolutionRun = 16;  // rows of a run forward

/// What the taps of a vector of channels see while rows enter one after the other. `taps`: the width or more.
template <class T, int count, int taps>
struct ConvolutionWindow {
  using Narrow = Vector<T, count>;
  using Wide = Vector<float, count>;
  const cpu::ShortConvolutionProblem& p;
  int64_t per_row, vector, token;     // token: of the next row to enter, within its sequence
  int64_t first;                      // row to enter, for all to be seen at `begin`
  bool is_border = false;             // whether the last row sees none before it but those of the tail
  Wide weight[taps]{}, seen[taps]{};  // by age; hidden tokens are zeros

  INGOT_DEVICE ConvolutionWindow(const cpu::ShortConvolutionProblem& problem, int64_t vector_, int64_t begin)
      : p(problem), per_row(quotient(problem.channels, count)), vector(vector_), token(remainder(begin, problem.seq)) {
    const int64_t before = token < p.width - 1 ? token : p.width - 1;
    first = begin - before;
    token -= before;
    INGOT_UNROLL
    for (int age = 0; age < taps; ++age)
      if (age < p.width) weight[age] = reinterpret_cast<const Wide*>(p.weight)[in_weight(age)];
  }
  INGOT_DEVICE int64_t in_weight(int age) const { return (p.width - 1 - age) * per_row + vector; }
  INGOT_DEVICE Narrow at(const void* rows, int64_t row) const { return static_cast<const Narrow*>(rows)[row * per_row + vector]; }

  INGOT_DEVICE void enter(int64_t row, const Narrow& own) {
    const bool is_start = p.is_start != nullptr && p.is_start[row], is_first = token == 0;
    INGOT_UNROLL
    for (int age = taps - 1; age > 0; --age) {
      if (is_start || age >= p.width) seen[age] = Wide{};
      else seen[age] = is_first ? of_tail(row, age) : seen[age - 1];
    }
    seen[0] = wide(own);
    is_border = is_start || is_first;
    token = token + 1 == p.seq ? 0 : token + 1;
  }

  INGOT_DEVICE Wide of_tail(int64_t row, int age) const {
    if (p.tail == nullptr) return Wide{};
    return wide(at(p.tail, (quotient(row, p.seq) + 1) * (p.width - 1) - age));
  }

  INGOT_DEVICE Wide sum() const {
    Wide out{};
    INGOT_UNROLL
    for (int age = 0; age < taps; ++age)
      for (int k = 0; k < count; ++k) out.at[k] += seen[age].at[k] * weight[age].at[k];
    return out;
  }

  static INGOT_DEVICE Wide wide(const Narrow& x) {
    Wide out;
    for (int k = 0; k < count; ++k) out.at[k] = to_float(x.at[k]);
    return out;
  }
};

template <class T, int count, int taps>
struct ShortConvolutionForward {
  static constexpr int kThreads = kShortConvolutionThreads;
  using Window = ConvolutionWindow<T, count, taps>;
  using Narrow = typename Window::Narrow;

  static INGOT_DEVICE void run(const cpu::ShortConvolutionProblem& p) {
    const int64_t item = block_index() * block_threads() + thread_index(), per_row = quotient(p.channels, count),
                  begin = quotient(item, per_row) * kShortConvolutionRun;
    if (begin >= p.rows) return;
    const int64_t end = begin + kShortConvolutionRun < p.rows ? begin + kShortConvolutionRun : p.rows;
    Window window(p, remainder(item, per_row), begin);
    Narrow next = window.at(p.x, window.first);
    INGOT_ROLLED
    for (int64_t row = window.first; row < end; ++row) {
      const Narrow own = next;
      if (row + 1 < end) next = window.at(p.x, row + 1);  // on its way while this one is worked on
      window.enter(row, own);
      if (row < begin) continue;
      const auto sum = window.sum();
      Narrow out;
      for (int k = 0; k < count; ++k) from_float(sum.at[k] * sigmoid(sum.at[k]), out.at[k]);
      static_cast<Narrow*>(p.out)[row * per_row + window.vector] = out;
    }
  }
};

/// p.sums: [runs][width][channels], of the weight.
template <class T, int count, int taps>
struct ShortConvolutionBackward {
  static constexpr int kThreads = kShortConvolutionThreads;
  using Window = ConvolutionWindow<T, count, taps>;
  using Narrow = typename Window::Narrow;
  using Wide = typename Window::Wide;

  static INGOT_DEVICE void run(const cpu::ShortConvolutionProblem& p) {
    const int64_t item = block_index() * block_threads() + thread_index(), per_row = quotient(p.channels, count),
                  of_run = quotient(item, per_row);
    if (of_run >= p.runs) return;
    const int64_t begin = first_row_of(p.rows, of_run, p.runs), end = first_row_of(p.rows, of_run + 1, p.runs),
                  behind = end + p.width - 1 < p.rows ? end + p.width - 1 : p.rows;  // the last that may see a row of this run
    Window window(p, remainder(item, per_row), begin);
    Wide sums[taps]{}, grads[taps]{};  // of the weight; of the last rows' x, by age
    int64_t readable = 0;              // how many of the run's last rows the current one sees
    Narrow next = window.at(p.x, window.first), next_grad = window.at(p.grad, window.first);
    INGOT_ROLLED
    for (int64_t row = window.first; row < end + taps - 1; ++row) {
      Wide g{};
      if (row < behind) {
        const Narrow own = next, grad = next_grad;
        if (row + 1 < behind) next = window.at(p.x, row + 1), next_grad = window.at(p.grad, row + 1);
        window.enter(row, own);
        if (row < begin) continue;
        readable = window.is_border ? 1 : readable + 1;
        g = gradient(window.sum(), grad);
        if (row < end) add(g, window, sums);
      }
      INGOT_UNROLL
      for (int age = taps - 1; age >= 0; --age) {
        grads[age] = age > 0 ? grads[age - 1] : Wide{};
        if (age < readable)
          for (int k = 0; k < count; ++k) grads[age].at[k] += g.at[k] * window.weight[age].at[k];
      }
      const int64_t done = row - (taps - 1);
      if (done < begin) continue;
      Narrow out;
      for (int k = 0; k < count; ++k) from_float(grads[taps - 1].at[k], out.at[k]);
      static_cast<Narrow*>(p.grad_x)[done * per_row + window.vector] = out;
    }
    INGOT_UNROLL
    for (int age = 0; age < taps; ++age)
      if (age < p.width) reinterpret_cast<Wide*>(p.sums)[of_run * p.width * per_row + window.in_weight(age)] = sums[age];
  }

  /// Of the sum before SiLU.
  static INGOT_DEVICE Wide gradient(const Wide& sum, const Narrow& grad) {
    Wide out;
    for (int k = 0; k < count; ++k) {
      const float s = sigmoid(sum.at[k]), silu = sum.at[k] * s;
      out.at[k] = to_float(grad.at[k]) * (s + silu * (1.0f - s));
    }
    return out;
  }

  static INGOT_DEVICE void add(const Wide& g, const Window& window, Wide (&sums)[taps]) {
    INGOT_UNROLL
    for (int age = 0; age < taps; ++age)
      for (int k = 0; k < count; ++k) sums[age].at[k] += g.at[k] * window.seen[age].at[k];
  }
};

/// A thread a vector of each run. `most`: registers that a thread spends on each thing that it keeps by age: weights, tokens, sums.
template <int most, template <class, int, int> class Kernel, class Launcher>
auto launch_short_convolution(const cpu::ShortConvolutionProblem& p, int64_t runs, const Launcher& launcher) {
  bool are_aligned = true;
  for (const void* address : {p.x, p.tail, static_cast<const void*>(p.weight), static_cast<const void*>(p.out), p.grad,
                              static_cast<const void*>(p.grad_x), static_cast<const void*>(p.sums)})
    are_aligned = are_aligned && is_aligned(address);
  const auto with = [&]<class T, int taps>(Vector<T, 1>, Constant<taps>) {
    constexpr int kInVector = 16 / static_cast<int>(sizeof(T)), kCount = kInVector < most / taps ? kInVector : most / taps;
    const auto launch = [&]<int count>(Constant<count>) {
      const int64_t items = runs * (p.channels / count);
      return launcher.template run<Kernel<T, count, taps>>((items + kShortConvolutionThreads - 1) / kShortConvolutionThreads,
                                                           kShortConvolutionThreads, p);
    };
    return are_aligned && p.channels % kInVector == 0 ? launch(Constant<kCount>{}) : launch(Constant<1>{});
  };
  const auto with_taps = [&]<int taps>(Constant<taps> of) {
    return p.is_bf16 ? with(Vector<Bf16, 1>{}, of) : with(Vector<float, 1>{}, of);
  };
  static_assert(cpu::ShortConvolutionProblem::kMostTaps == 8);
  return p.width <= 4 ? with_taps(Constant<4>{}) : with_taps(Constant<8>{});
}

template <class Launcher>
auto short_convolution_forward(const cpu::ShortConvolutionProblem& p, const Launcher& launcher) {
  const int64_t runs = (p.rows + kShortConvolutionRun - 1) / kShortConvolutionRun;
  return launch_short_convolution<32, ShortConvolutionForward>(p, runs, launcher);
}
template <class Launcher>
auto short_convolution_backward(const cpu::ShortConvolutionProblem& p, const Launcher& launcher) {
  return launch_short_convolution<16, ShortConvolutionBackward>(p, p.runs, launcher);
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
