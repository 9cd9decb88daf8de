// RMSNorm and rotation of the query and key heads of a packed projection on a GPU, each head normed by itself: cpu/rows_qk_norm.h has the
// problem. Bound by memory: a wave a head of a token, which reads it twice, the second time from the cache.
#pragma once

#include "kernels/cpu/rows_qk_norm.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

constexpr int kQkNormThreads = 256;

/// A head of q, then of k: where it lies, in vectors.
template <class T, int count>
struct QkHead {
  using Narrow = Vector<T, count>;
  using Wide = Vector<float, count>;
  bool is_query;
  int64_t per_head, in_packed, in_split, in_inverse;
  const Wide* weight;

  INGOT_DEVICE QkHead(const cpu::QkNormProblem& p, int64_t row, int64_t head)
      : is_query(head < p.q.heads),
        per_head(quotient(p.head_dim, count)),
        in_packed((row * (p.q.heads + 2 * p.k.heads) + head) * per_head),
        in_split((is_query ? row * p.q.heads + head : row * p.k.heads + head - p.q.heads) * per_head),
        in_inverse(row * (p.q.heads + p.k.heads) + head),
        weight(reinterpret_cast<const Wide*>(is_query ? p.q.weight : p.k.weight)) {}
};

/// `own` turned with its partner, both of vector `vector` of a head at the position of `row`; with is_backward back.
template <bool is_backward, int count>
INGOT_DEVICE Vector<float, count> turned(const cpu::QkNormProblem& p, int64_t row, int64_t vector, const Vector<float, count>& own,
                                         const Vector<float, count>& other) {
  const int64_t half = quotient(p.half, count);
  const bool is_first = vector < half;
  const int64_t in_table = remainder(row, p.table_rows) * p.half + (is_first ? vector : vector - half) * count;
  Vector<float, count> out;
  for (int k = 0; k < count; ++k) {
    const float sine = p.sine[in_table + k];
    out.at[k] = own.at[k] * p.cosine[in_table + k] + other.at[k] * (is_first != is_backward ? -sine : sine);
  }
  return out;
}

/// The vector that is turned together with `vector`, itself where none is.
template <int count>
INGOT_DEVICE int64_t partner_of(const cpu::QkNormProblem& p, int64_t vector) {
  const int64_t half = quotient(p.half, count);
  return vector >= 2 * half ? vector : vector < half ? vector + half : vector - half;
}

template <class T, int count>
struct QkNormForward {
  static constexpr int kThreads = kQkNormThreads;
  using Narrow = Vector<T, count>;
  using Wide = Vector<float, count>;

  static INGOT_DEVICE void run(const cpu::QkNormProblem& p) {
    const int lane = thread_index() % kWave, waves = block_threads() / kWave;
    const int64_t heads = p.q.heads + p.k.heads, items = p.rows * heads;
    INGOT_ROLLED
    for (int64_t first = block_index() * waves; first < items; first += grid_blocks() * waves) {
      const int64_t item = first + thread_index() / kWave;  // the same for a wave, all of whose threads come to its sum
      const bool has_item = item < items;
      const int64_t row = has_item ? quotient(item, heads) : 0;
      const QkHead<T, count> head(p, row, has_item ? remainder(item, heads) : 0);
      const Narrow* const x = static_cast<const Narrow*>(p.packed) + head.in_packed;
      float squares = 0;
      for (int64_t vector = lane; has_item && vector < head.per_head; vector += kWave) {
        const Narrow own = x[vector];
        for (int k = 0; k < count; ++k) squares += to_float(own.at[k]) * to_float(own.at[k]);
      }
      const float inverse = 1.0f / root(wave_sum(squares) / static_cast<float>(p.head_dim) + static_cast<float>(p.eps));
      if (!has_item) continue;
      if (lane == 0) p.inverse[head.in_inverse] = inverse;
      for (int64_t vector = lane; vector < head.per_head; vector += kWave) {
        const int64_t partner = partner_of<count>(p, vector);
        Wide out = normed(x[vector], head.weight[vector], inverse);
        if (partner != vector) out = turned<false>(p, row, vector, out, normed(x[partner], head.weight[partner], inverse));
        Narrow narrow;
        for (int k = 0; k < count; ++k) from_float(out.at[k], narrow.at[k]);
        static_cast<Narrow*>(head.is_query ? p.q.split : p.k.split)[head.in_split + vector] = narrow;
      }
    }
  }

  /// Rounded as it would be written between the norm and the rotation.
  static INGOT_DEVICE Wide normed(const Narrow& x, const Wide& weight, float inverse) {
    Wide out;
    for (int k = 0; k < count; ++k) {
      T rounded;
      from_float(to_float(x.at[k]) * inverse * weight.at[k], rounded);
      out.at[k] = to_float(rounded);
    }
    return out;
  }
};

/// A block a run of rows; `vectors`: a lane's share of a head. p.sums: [runs][2][head_dim], of the weights of q and k.
template <class T, int count, int vectors>
struct QkNormBackward {
  static constexpr int kThreads = kQkNormThreads;
  using Narrow = Vector<T, count>;
  using Wide = Vector<float, count>;

  static INGOT_DEVICE void run(const cpu::QkNormProblem& p) {
    const int wave = thread_index() / kWave, waves = block_threads() / kWave;
    const int64_t begin = first_row_of(p.rows, block_index(), grid_blocks()), end = first_row_of(p.rows, block_index() + 1, grid_blocks());
    for (int which = 0; which < 2; ++which) {  // q, k
      const int64_t first = which == 0 ? 0 : p.q.heads, heads = which == 0 ? p.q.heads : p.k.heads, items = (end - begin) * heads;
      Wide sums[vectors]{};
      INGOT_ROLLED
      for (int64_t item = 0; item < items; item += waves)
        work_on(p, begin + quotient(item + wave, heads), first + remainder(item + wave, heads), item + wave < items, sums);
      add_waves(p, which, sums);
    }
    const int64_t values = p.k.heads * quotient(p.head_dim, count), before = (p.q.heads + p.k.heads) * quotient(p.head_dim, count);
    INGOT_ROLLED
    for (int64_t i = thread_index(); i < (end - begin) * values; i += block_threads()) {
      const int64_t row = begin + quotient(i, values), value = remainder(i, values);
      static_cast<Narrow*>(p.grad_packed)[row * (before + values) + before + value] =
          static_cast<const Narrow*>(p.grad_v)[row * values + value];
    }
  }

  static INGOT_DEVICE void work_on(const cpu::QkNormProblem& p, int64_t row_or_behind, int64_t head_or_none, bool has_item,
                                   Wide (&sums)[vectors]) {
    const int lane = thread_index() % kWave;
    const int64_t row = has_item ? row_or_behind : 0;
    const QkHead<T, count> head(p, row, has_item ? head_or_none : 0);
    const Narrow* const grads = static_cast<const Narrow*>(head.is_query ? p.q.split : p.k.split) + head.in_split;
    const float inverse = p.inverse[head.in_inverse];
    Wide x[vectors]{}, g[vectors]{};  // g: the gradient of the norm times the weight
    float dot = 0;
    INGOT_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const int64_t vector = lane + static_cast<int64_t>(v) * kWave;
      if (!has_item || vector >= head.per_head) continue;
      x[v] = wide(static_cast<const Narrow*>(p.packed)[head.in_packed + vector]);
      g[v] = wide(grads[vector]);
      const int64_t partner = partner_of<count>(p, vector);
      if (partner != vector) g[v] = turned<true>(p, row, vector, g[v], wide(grads[partner]));
      const Wide weight = head.weight[vector];
      for (int k = 0; k < count; ++k) {
        sums[v].at[k] += g[v].at[k] * x[v].at[k] * inverse;
        g[v].at[k] *= weight.at[k];
        dot += g[v].at[k] * x[v].at[k];
      }
    }
    const float along = wave_sum(dot) * inverse * inverse * inverse / static_cast<float>(p.head_dim);
    INGOT_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const int64_t vector = lane + static_cast<int64_t>(v) * kWave;
      if (!has_item || vector >= head.per_head) continue;
      Narrow out;
      for (int k = 0; k < count; ++k) from_float(g[v].at[k] * inverse - x[v].at[k] * along, out.at[k]);
      static_cast<Narrow*>(p.grad_packed)[head.in_packed + vector] = out;
    }
  }

  /// The waves' sums to p.sums, added in the order of the waves.
  static INGOT_DEVICE void add_waves(const cpu::QkNormProblem& p, int which, const Wide (&sums)[vectors]) {
    constexpr int kPerWave = vectors * kWave * count;
    INGOT_SHARED_FLOATS(area, kQkNormThreads / kWave * kPerWave);
    const int lane = thread_index() % kWave;
    for (int v = 0; v < vectors; ++v)
      for (int k = 0; k < count; ++k) area[thread_index() / kWave * kPerWave + (lane + v * kWave) * count + k] = sums[v].at[k];
    barrier();
    for (int64_t channel = thread_index(); channel < p.head_dim; channel += block_threads()) {
      float sum = 0;
      for (int wave = 0; wave < block_threads() / kWave; ++wave) sum += area[wave * kPerWave + channel];
      p.sums[(block_index() * 2 + which) * p.head_dim + channel] = sum;
    }
    barrier();
  }

  static INGOT_DEVICE Wide wide(const Narrow& x) {
    Wide out;
    for (int k = 0; k < count; ++k) out.at[k] = to_float(x.at[k]);
    return out;
  }
};

template <class With>
auto spread_qk_norm(const cpu::QkNormProblem& p, const With& with) {
  const bool has_vectors = p.head_dim % 4 == 0 && p.half % 4 == 0 && is_aligned(p.packed) && is_aligned(p.q.split) &&
                           is_aligned(p.k.split) && is_aligned(p.q.weight) && is_aligned(p.k.weight) && is_aligned(p.grad_v) &&
                           is_aligned(p.grad_packed);
  if (p.is_bf16) return has_vectors ? with(Vector<Bf16, 4>{}) : with(Vector<Bf16, 1>{});
  return has_vectors ? with(Vector<float, 4>{}) : with(Vector<float, 1>{});
}

template <class Launcher>
auto qk_norm_forward(const cpu::QkNormProblem& p, const Launcher& launcher) {
  return spread_qk_norm(p, [&]<class T, int count>(Vector<T, count>) {
    constexpr int kWaves = kQkNormThreads / kWave;
    return launcher.template run<QkNormForward<T, count>>((p.rows * (p.q.heads + p.k.heads) + kWaves - 1) / kWaves, kQkNormThreads, p);
  });
}
/// A block for each run of p.sums.
template <class Launcher>
auto qk_norm_backward(const cpu::QkNormProblem& p, const Launcher& launcher) {
  return spread_qk_norm(p, [&]<class T, int count>(Vector<T, count>) {
    if constexpr (count == 1) return launcher.template run<QkNormBackward<T, 1, cpu::kMostHeadDimOfQkNorm / 32>>(p.runs, kQkNormThreads, p);
    else
      return p.head_dim / count <= kWave ? launcher.template run<QkNormBackward<T, count, 1>>(p.runs, kQkNormThreads, p)
                                         : launcher.template run<QkNormBackward<T, count, 2>>(p.runs, kQkNormThreads, p);
  });
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
