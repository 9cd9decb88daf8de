// CCA's token mixing around the products of its grouped convolution, on a GPU: cpu/rows_cca.h has the problem, kernels/cca.h the operation.
// Bound by memory. Unlike the CPU's, the backward pass of the heads leaves the gradient of `packed` to that of the taps, which reads
// grad_mixed for it.
#pragma once

#include "kernels/cpu/rows_cca.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

constexpr int kCcaThreads = 256, kMostCcaHeadDim = 256;
constexpr float kCcaNormFloor = 1.1920929e-7f;  // as the reference: the epsilon of fp32

INGOT_DEVICE bool starts(const cpu::CcaProblem& p, int64_t row) {
  return remainder(row, p.seq) == 0 || (p.is_start != nullptr && p.is_start[row]);
}
/// Whether the token after `row` belongs to the same document.
INGOT_DEVICE bool continues(const cpu::CcaProblem& p, int64_t row) { return row + 1 < p.rows && !starts(p, row + 1); }

/// Rows and heads in vectors of `count` elements.
template <class T, int count>
struct CcaView {
  using Narrow = Vector<T, count>;
  using Wide = Vector<float, count>;
  const cpu::CcaProblem& p;
  int64_t per_head, all_heads, latent, width;

  INGOT_DEVICE explicit CcaView(const cpu::CcaProblem& problem)
      : p(problem),
        per_head(quotient(problem.head_dim, count)),
        all_heads(problem.heads + problem.kv_heads),
        latent(all_heads * per_head),
        width(latent + problem.kv_heads * per_head) {}
  INGOT_DEVICE const Narrow* packed(int64_t row) const { return static_cast<const Narrow*>(p.packed) + row * width; }
  INGOT_DEVICE static Wide wide(const float* from, int64_t vector) { return reinterpret_cast<const Wide*>(from)[vector]; }

  /// Of the q or k before normalisation: the convolution, its bias, and the q-k mean.
  INGOT_DEVICE Wide mixed(int64_t row, int64_t head, int64_t vector) const {
    const Narrow* const u = packed(row);
    const int64_t groups = quotient(p.heads, p.kv_heads), channel = head * per_head + vector;
    const Narrow own = u[channel];
    Wide x = wide(p.mixed, row * latent + channel);
    const Wide bias = wide(p.bias1, channel);
    if (head < p.heads) {
      const Narrow key = u[(p.heads + quotient(head, groups)) * per_head + vector];
      for (int k = 0; k < count; ++k) x.at[k] += bias.at[k] + (to_float(own.at[k]) + to_float(key.at[k])) * 0.5f;
      return x;
    }
    Wide queries{};
    INGOT_ROLLED
    for (int64_t j = 0; j < groups; ++j) {
      const Narrow query = u[((head - p.heads) * groups + j) * per_head + vector];
      for (int k = 0; k < count; ++k) queries.at[k] += to_float(query.at[k]);
    }
    for (int k = 0; k < count; ++k) x.at[k] += bias.at[k] + (queries.at[k] / static_cast<float>(groups) + to_float(own.at[k])) * 0.5f;
    return x;
  }

  /// What the q-k mean hands back to a channel of packed.
  INGOT_DEVICE Wide gradient_of_mean(int64_t row, int64_t head, int64_t vector) const {
    const int64_t groups = quotient(p.heads, p.kv_heads);
    const auto at = [&](int64_t of_head) { return wide(p.grad_mixed, row * latent + of_head * per_head + vector); };
    Wide sum = at(head);
    if (head < p.heads) {
      const Wide key = at(p.heads + quotient(head, groups));
      for (int k = 0; k < count; ++k) sum.at[k] = (sum.at[k] + key.at[k] / static_cast<float>(groups)) * 0.5f;
      return sum;
    }
    for (int64_t j = 0; j < groups; ++j) {
      const Wide query = at((head - p.heads) * groups + j);
      for (int k = 0; k < count; ++k) sum.at[k] += query.at[k];
    }
    for (int k = 0; k < count; ++k) sum.at[k] *= 0.5f;
    return sum;
  }

  /// Of the first convolution's output at a token: as "this token", and as "previous token" of the next one.
  INGOT_DEVICE Wide gradient_of_taps(int64_t row, int64_t head, int64_t vector) const {
    const Wide* const as_previous = reinterpret_cast<const Wide*>(p.grad_taps) + 2 * (row * latent + head * per_head) + vector;
    Wide g = as_previous[per_head];
    if (!continues(p, row)) return g;
    const Wide later = as_previous[2 * latent];  // of the next token
    for (int k = 0; k < count; ++k) g.at[k] += later.at[k];
    return g;
  }
};

/// Channel `channel` of a head that lies in `x`, rotated by the position of `row`, or with is_backward back.
template <bool is_backward>
INGOT_DEVICE float rotated(const cpu::CcaProblem& p, const float* x, int64_t channel, int64_t row) {
  if (channel >= 2 * p.half) return x[channel];
  const bool is_first = channel < p.half;
  const int64_t in_table = remainder(row, p.table_rows) * p.half + (is_first ? channel : channel - p.half);
  const float sine = p.sine[in_table];
  return x[channel] * p.cosine[in_table] + x[is_first ? channel + p.half : channel - p.half] * (is_first != is_backward ? -sine : sine);
}

/// The depthwise convolution: a thread a vector, in a loop over the grid.
template <class T, int count>
struct CcaTaps {
  static constexpr int kThreads = kCcaThreads;
  static INGOT_DEVICE void run(const cpu::CcaProblem& p) {
    const CcaView<T, count> view(p);
    using Wide = Vector<float, count>;
    for (int64_t i = block_index() * block_threads() + thread_index(); i < p.rows * view.latent; i += grid_blocks() * block_threads()) {
      const int64_t row = quotient(i, view.latent), channel = remainder(i, view.latent), head = quotient(channel, view.per_head),
                    vector = remainder(channel, view.per_head);
      const bool is_first = starts(p, row);
      const Wide bias = view.wide(p.bias0, channel), tap1 = view.wide(p.tap1, channel);
      const auto own = view.packed(row)[channel];
      Wide x;
      for (int k = 0; k < count; ++k) x.at[k] = to_float(own.at[k]) * tap1.at[k] + bias.at[k];
      if (!is_first) {
        const auto before = view.packed(row - 1)[channel];
        const Wide tap0 = view.wide(p.tap0, channel);
        for (int k = 0; k < count; ++k) x.at[k] += to_float(before.at[k]) * tap0.at[k];
      }
      Wide* const as_previous = reinterpret_cast<Wide*>(p.taps) + (row * view.all_heads + head) * 2 * view.per_head + vector;
      as_previous[view.per_head] = x;
      if (is_first) as_previous[0] = bias;
      if (continues(p, row)) as_previous[2 * view.latent] = x;  // of the next token
    }
  }
};

/// The value shift: a thread a vector, in a loop over the grid.
template <class T, int count>
INGOT_DEVICE void shift_values(const cpu::CcaProblem& p, const CcaView<T, count>& view) {
  const int64_t values = view.width - view.latent;
  INGOT_ROLLED
  for (int64_t i = block_index() * block_threads() + thread_index(); i < p.rows * values; i += grid_blocks() * block_threads()) {
    const int64_t row = quotient(i, values), vector = remainder(i, values);
    const bool is_current = vector * count < p.current, is_known = is_current || !starts(p, row);
    const Vector<T, count> from = view.packed(is_current || !is_known ? row : row - 1)[view.latent + vector];
    Vector<T, count> out;
    for (int k = 0; k < count; ++k) out.at[k] = is_known ? from.at[k] : T{};
    static_cast<Vector<T, count>*>(p.v)[i] = out;
  }
}

/// Mean, normalisation, temperature, rotation: a wave a head of a token; then the value shift.
template <class T, int count>
struct CcaHeads {
  static constexpr int kThreads = kCcaThreads;
  static INGOT_DEVICE void run(const cpu::CcaProblem& p) {
    INGOT_SHARED_FLOATS(area, kCcaThreads / 32 * kMostCcaHeadDim);
    const CcaView<T, count> view(p);
    using Wide = Vector<float, count>;
    const int wave = thread_index() / kWave, lane = thread_index() % kWave, waves = block_threads() / kWave;
    float* const x = area + wave * kMostCcaHeadDim;
    const int64_t items = p.rows * view.all_heads;
    INGOT_ROLLED
    for (int64_t first = block_index() * waves; first < items; first += grid_blocks() * waves) {  // the same for all threads
      const int64_t item = first + wave, row = quotient(item, view.all_heads), head = remainder(item, view.all_heads);
      const bool has_item = item < items;
      float squares = 0;
      INGOT_ROLLED
      for (int64_t vector = lane; has_item && vector < view.per_head; vector += kWave) {
        const Wide mixed = view.mixed(row, head, vector);
        for (int k = 0; k < count; ++k) {
          squares += mixed.at[k] * mixed.at[k];
          x[vector * count + k] = mixed.at[k];
        }
      }
      const float norm = root(wave_sum(squares));
      barrier();
      INGOT_ROLLED
      for (int64_t vector = lane; has_item && vector < view.per_head; vector += kWave) {
        const bool is_query = head < p.heads;
        const float factor = root(static_cast<float>(p.head_dim)) / (norm < kCcaNormFloor ? kCcaNormFloor : norm) *
                             (is_query ? 1.0f : p.temperature[head - p.heads]);
        Vector<T, count> out;
        INGOT_UNROLL
        for (int k = 0; k < count; ++k) from_float(rotated<false>(p, x, vector * count + k, row) * factor, out.at[k]);
        auto* const to = static_cast<Vector<T, count>*>(is_query ? p.q : p.k);
        to[(is_query ? row * p.heads + head : row * p.kv_heads + head - p.heads) * view.per_head + vector] = out;
      }
      barrier();
    }
    shift_values<T, count>(p, view);
  }
};

/// A block a run of rows, a wave a head at a time, whose channels lie in shared memory. p.sums: [runs][latent + kv_heads], of the second
/// convolution's bias and the temperature.
template <class T, int count>
struct CcaHeadsBackward {
  static constexpr int kThreads = kCcaThreads;
  using Wide = Vector<float, count>;

  static INGOT_DEVICE void run(const cpu::CcaProblem& p) {
    const CcaView<T, count> view(p);
    const int wave = thread_index() / kWave, waves = block_threads() / kWave;
    INGOT_ROLLED
    for (int64_t first = 0; first < view.all_heads; first += waves) work_on(p, view, first + wave);
  }

  static INGOT_DEVICE void work_on(const cpu::CcaProblem& p, const CcaView<T, count>& view, int64_t head) {
    constexpr int kArea = kCcaThreads / 32 * kMostCcaHeadDim;
    INGOT_SHARED_FLOATS(heads, kArea);      // before they were normed
    INGOT_SHARED_FLOATS(gradients, kArea);  // as they came, behind the rotation
    INGOT_SHARED_FLOATS(sums, kArea);       // each read and written by one thread alone
    const int lane = thread_index() % kWave, begin = thread_index() / kWave * kMostCcaHeadDim;
    float* const gradient = gradients + begin;
    Wide *const x = reinterpret_cast<Wide*>(heads + begin), *const grad = reinterpret_cast<Wide*>(gradient),
                *const sum = reinterpret_cast<Wide*>(sums + begin);
    const bool has_head = head < view.all_heads, is_query = head < p.heads;
    const int64_t vectors = has_head ? view.per_head : 0;
    const float temperature = is_query || !has_head ? 1.0f : p.temperature[head - p.heads], length = root(static_cast<float>(p.head_dim));
    const auto* const grads = static_cast<const Vector<T, count>*>(is_query ? p.q : p.k);
    float of_temperature = 0;
    for (int64_t v = lane; v < vectors; v += kWave) sum[v] = Wide{};
    INGOT_ROLLED
    for (int64_t row = first_row_of(p.rows, block_index(), grid_blocks()); row < first_row_of(p.rows, block_index() + 1, grid_blocks());
         ++row) {
      const int64_t in_grads = (is_query ? row * p.heads + head : row * p.kv_heads + head - p.heads) * view.per_head;
      float squares = 0, dot = 0;
      INGOT_ROLLED
      for (int64_t v = lane; v < vectors; v += kWave) {
        const Wide mixed = view.mixed(row, head, v);
        const Vector<T, count> from = grads[in_grads + v];
        Wide to;
        for (int k = 0; k < count; ++k) {
          squares += mixed.at[k] * mixed.at[k];
          to.at[k] = to_float(from.at[k]);
        }
        x[v] = mixed;
        grad[v] = to;
      }
      barrier();
      INGOT_ROLLED
      for (int64_t v = lane; v < vectors; v += kWave) {
        const Wide own = x[v];
        for (int k = 0; k < count; ++k) dot += rotated<true>(p, gradient, v * count + k, row) * own.at[k];
      }
      const float root_of_squares = root(wave_sum(squares)), norm = root_of_squares < kCcaNormFloor ? kCcaNormFloor : root_of_squares;
      dot = wave_sum(dot);
      of_temperature += dot * length / norm;
      const float factor = length * temperature / norm, along = dot / (norm * norm);
      INGOT_ROLLED
      for (int64_t v = lane; v < vectors; v += kWave) {
        const Wide own = x[v];
        Wide out, total = sum[v];
        for (int k = 0; k < count; ++k) {
          out.at[k] = (rotated<true>(p, gradient, v * count + k, row) - own.at[k] * along) * factor;
          total.at[k] += out.at[k];
        }
        sum[v] = total;
        reinterpret_cast<Wide*>(p.grad_mixed)[row * view.latent + head * view.per_head + v] = out;
      }
      barrier();  // before the next row is put there
    }
    float* const to = p.sums + block_index() * (view.latent * count + p.kv_heads);
    for (int64_t v = lane; v < vectors; v += kWave)
      for (int k = 0; k < count; ++k) to[(head * view.per_head + v) * count + k] = sum[v].at[k];
    if (has_head && !is_query && lane == 0) to[view.latent * count + head - p.heads] = of_temperature;
  }
};

/// A thread a vector of packed in a run of rows. p.sums: [runs][3][latent], of both taps and the first convolution's bias.
template <class T, int count>
struct CcaTapsBackward {
  static constexpr int kThreads = 128;
  using Wide = Vector<float, count>;
  using Narrow = Vector<T, count>;

  static INGOT_DEVICE int64_t blocks_of_a_run(const CcaView<T, count>& view) {
    return quotient(view.width + block_threads() - 1, block_threads());
  }

  static INGOT_DEVICE void run(const cpu::CcaProblem& p) {
    const CcaView<T, count> view(p);
    const int64_t tiles = blocks_of_a_run(view), run = quotient(block_index(), tiles),
                  vector = remainder(block_index(), tiles) * block_threads() + thread_index(), begin = first_row_of(p.rows, run, p.runs),
                  end = first_row_of(p.rows, run + 1, p.runs);
    if (vector < view.latent) of_latent(p, view, vector, begin, end, run);
    else if (vector < view.width) of_values(p, view, vector, begin, end);
  }

  static INGOT_DEVICE void of_latent(const cpu::CcaProblem& p, const CcaView<T, count>& view, int64_t channel, int64_t begin, int64_t end,
                                     int64_t run) {
    const int64_t head = quotient(channel, view.per_head), vector = remainder(channel, view.per_head);
    const Wide tap0 = view.wide(p.tap0, channel), tap1 = view.wide(p.tap1, channel);
    Wide by_tap0{}, by_tap1{}, by_bias{}, g = view.gradient_of_taps(begin, head, vector);
    INGOT_ROLLED
    for (int64_t row = begin; row < end; ++row) {
      const bool is_first = starts(p, row), has_next = continues(p, row);
      const Narrow own = view.packed(row)[channel];
      Wide sum = view.gradient_of_mean(row, head, vector);
      for (int k = 0; k < count; ++k) {
        by_tap1.at[k] += g.at[k] * to_float(own.at[k]);
        by_bias.at[k] += g.at[k];
        sum.at[k] += g.at[k] * tap1.at[k];
      }
      if (is_first) {  // the bias stands before the first token, too
        const Wide before = view.wide(p.grad_taps, (row * view.all_heads + head) * 2 * view.per_head + vector);
        for (int k = 0; k < count; ++k) by_bias.at[k] += before.at[k];
      } else {
        const Narrow before = view.packed(row - 1)[channel];
        for (int k = 0; k < count; ++k) by_tap0.at[k] += g.at[k] * to_float(before.at[k]);
      }
      if (row + 1 < p.rows) g = view.gradient_of_taps(row + 1, head, vector);
      Narrow out;
      for (int k = 0; k < count; ++k) from_float(sum.at[k] + (has_next ? g.at[k] * tap0.at[k] : 0.0f), out.at[k]);
      static_cast<Narrow*>(p.grad_packed)[row * view.width + channel] = out;
    }
    Wide* const sums = reinterpret_cast<Wide*>(p.sums) + run * 3 * view.latent + channel;
    sums[0] = by_tap0;
    sums[view.latent] = by_tap1;
    sums[2 * view.latent] = by_bias;
  }

  static INGOT_DEVICE void of_values(const cpu::CcaProblem& p, const CcaView<T, count>& view, int64_t vector, int64_t begin, int64_t end) {
    const int64_t values = view.width - view.latent, value = vector - view.latent;
    const auto* const grad = static_cast<const Narrow*>(p.v);
    const bool is_current = value * count < p.current;
    for (int64_t row = begin; row < end; ++row) {
      Narrow out{};
      if (is_current) out = grad[row * values + value];
      else if (continues(p, row)) out = grad[(row + 1) * values + value];
      static_cast<Narrow*>(p.grad_packed)[row * view.width + vector] = out;
    }
  }
};

/// with(Vector): of 4 elements where heads, values and addresses allow it.
template <class With>
auto spread_cca(const cpu::CcaProblem& p, const With& with) {
  bool has_vectors = p.head_dim % 4 == 0 && p.current % 4 == 0;
  for (const void* address :
       {p.packed, static_cast<const void*>(p.tap0), static_cast<const void*>(p.tap1), static_cast<const void*>(p.bias0),
        static_cast<const void*>(p.bias1), static_cast<const void*>(p.taps), static_cast<const void*>(p.mixed),
        static_cast<const void*>(p.q), static_cast<const void*>(p.k), static_cast<const void*>(p.v), static_cast<const void*>(p.grad_mixed),
        static_cast<const void*>(p.grad_taps), static_cast<const void*>(p.grad_packed)})
    has_vectors = has_vectors && is_aligned(address);
  if (p.is_bf16) return has_vectors ? with(Vector<Bf16, 4>{}) : with(Vector<Bf16, 1>{});
  return has_vectors ? with(Vector<float, 4>{}) : with(Vector<float, 1>{});
}

template <class Launcher>
auto cca_taps(const cpu::CcaProblem& p, const Launcher& launcher) {
  return spread_cca(p, [&]<class T, int count>(Vector<T, count>) {
    const int64_t vectors = p.rows * (p.heads + p.kv_heads) * (p.head_dim / count);
    return launcher.template run<CcaTaps<T, count>>((vectors + kCcaThreads - 1) / kCcaThreads, kCcaThreads, p);
  });
}
template <class Launcher>
auto cca_heads(const cpu::CcaProblem& p, const Launcher& launcher) {
  return spread_cca(p, [&]<class T, int count>(Vector<T, count>) {
    constexpr int kWaves = kCcaThreads / kWave;
    return launcher.template run<CcaHeads<T, count>>((p.rows * (p.heads + p.kv_heads) + kWaves - 1) / kWaves, kCcaThreads, p);
  });
}
/// A block for each run of p.sums.
template <class Launcher>
auto cca_heads_backward(const cpu::CcaProblem& p, const Launcher& launcher) {
  return spread_cca(
      p, [&]<class T, int count>(Vector<T, count>) { return launcher.template run<CcaHeadsBackward<T, count>>(p.runs, kCcaThreads, p); });
}
template <class Launcher>
auto cca_taps_backward(const cpu::CcaProblem& p, const Launcher& launcher) {
  return spread_cca(p, [&]<class T, int count>(Vector<T, count>) {
    constexpr int kThreads = CcaTapsBackward<T, count>::kThreads;
    const int64_t width = (p.heads + 2 * p.kv_heads) * (p.head_dim / count), tiles = (width + kThreads - 1) / kThreads;
    return launcher.template run<CcaTapsBackward<T, count>>(p.runs * tiles, kThreads, p);
  });
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
