// Residual joins and RMSNorm on a GPU: cpu/rows_norm.h has the problem. Bound by memory: a row stays in its block's registers between the
// sum of squares and the norm, so that everything is read and written once.
#pragma once

#include "kernels/cpu/rows_norm.h"
#include "kernels/gpu/dialect.h"

namespace ingot::kernels::gpu {
inline namespace INGOT_WAVE_NAMESPACE {

/// `vectors` of `count` elements are a thread's share of a row: the vectors thread, thread + threads, thread + 2 threads...
template <class T, int count, int vectors>
struct JoinNormForward {
  using Wide = Vector<float, count>;
  using Narrow = Vector<T, count>;

  static INGOT_DEVICE void run(const cpu::JoinNormProblem& p) {
    const int64_t per_row = quotient(p.width, count), row = block_index();
    const Wide* const residual = reinterpret_cast<const Wide*>(p.residual) + row * per_row;
    Wide x[vectors]{};
    float squares = 0;
    INGOT_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const int64_t i = thread_index() + static_cast<int64_t>(v) * block_threads();
      if (i >= per_row) continue;
      x[v] = residual[i];
      if (p.branch != nullptr) {
        const Narrow branch = (static_cast<const Narrow*>(p.branch) + row * per_row)[i];
        for (int k = 0; k < count; ++k) x[v].at[k] = joined(p, x[v].at[k], to_float(branch.at[k]), i * count + k);
        (reinterpret_cast<Wide*>(p.joined) + row * per_row)[i] = x[v];
      }
      for (int k = 0; k < count; ++k) squares += x[v].at[k] * x[v].at[k];
    }
    if (p.weight == nullptr) return;
    const float inverse = 1.0f / root(block_sum(squares) / static_cast<float>(p.width) + static_cast<float>(p.eps));
    if (thread_index() == 0) p.inverse[row] = inverse;
    INGOT_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const int64_t i = thread_index() + static_cast<int64_t>(v) * block_threads();
      if (i >= per_row) continue;
      const Wide weight = reinterpret_cast<const Wide*>(p.weight)[i];
      Narrow out;
      for (int k = 0; k < count; ++k) from_float(x[v].at[k] * inverse * weight.at[k], out.at[k]);
      (static_cast<Narrow*>(p.normed) + row * per_row)[i] = out;
    }
  }

  static INGOT_DEVICE float joined(const cpu::JoinNormProblem& p, float residual, float branch, int64_t column) {
    if (p.residual_scale == nullptr) return residual + branch;
    return (residual + p.residual_bias[column]) * p.residual_scale[column] + (branch + p.branch_bias[column]) * p.branch_scale[column];
  }
};

/// A block a run of rows, whose sums over rows it keeps in registers.
template <class T, int count, int vectors, bool is_scaled>
struct JoinNormBackward {
  using Wide = Vector<float, count>;
  using Narrow = Vector<T, count>;
  static constexpr int kSums = is_scaled ? cpu::kJoinNormSums : 1;  // the weight's first

  static INGOT_DEVICE void run(const cpu::JoinNormProblem& p) {
    const int64_t per_row = quotient(p.width, count), blocks = grid_blocks();
    Wide sums[kSums][vectors];
    for (int s = 0; s < kSums; ++s) INGOT_UNROLL
    for (int v = 0; v < vectors; ++v)
      for (int k = 0; k < count; ++k) sums[s][v].at[k] = 0;
    for (int64_t row = first_row_of(p.rows, block_index(), blocks); row < first_row_of(p.rows, block_index() + 1, blocks); ++row)
      work_on(p, row, per_row, sums);
    if (p.sums == nullptr) return;
    for (int s = 0; s < kSums; ++s) INGOT_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const int64_t i = thread_index() + static_cast<int64_t>(v) * block_threads();
      if (i < per_row) (reinterpret_cast<Wide*>(p.sums) + (block_index() * cpu::kJoinNormSums + s) * per_row)[i] = sums[s][v];
    }
  }

  static INGOT_DEVICE void work_on(const cpu::JoinNormProblem& p, int64_t row, int64_t per_row, Wide (&sums)[kSums][vectors]) {
    const Wide* const joined = reinterpret_cast<const Wide*>(p.branch != nullptr ? p.joined : p.residual) + row * per_row;
    const Narrow* const grad_normed = p.grad_normed == nullptr ? nullptr : static_cast<const Narrow*>(p.grad_normed) + row * per_row;
    Wide x[vectors]{}, g[vectors]{};  // the joined row, and the gradient of the norm times the weight
    float inverse = 0, dot = 0;
    if (grad_normed != nullptr) {
      inverse = p.inverse[row];
      INGOT_UNROLL
      for (int v = 0; v < vectors; ++v) {
        const int64_t i = thread_index() + static_cast<int64_t>(v) * block_threads();
        if (i >= per_row) continue;
        x[v] = joined[i];
        const Narrow grad = grad_normed[i];
        const Wide weight = reinterpret_cast<const Wide*>(p.weight)[i];
        for (int k = 0; k < count; ++k) {
          const float d = to_float(grad.at[k]);
          sums[cpu::kGradWeight][v].at[k] += d * x[v].at[k] * inverse;
          g[v].at[k] = d * weight.at[k];
          dot += g[v].at[k] * x[v].at[k];
        }
      }
      dot = block_sum(dot);
    }
    const float along = dot * inverse * inverse * inverse / static_cast<float>(p.width);
    INGOT_UNROLL
    for (int v = 0; v < vectors; ++v) {
      const int64_t i = thread_index() + static_cast<int64_t>(v) * block_threads();
      if (i >= per_row) continue;
      Wide by_joined;
      for (int k = 0; k < count; ++k) by_joined.at[k] = grad_normed == nullptr ? 0.0f : g[v].at[k] * inverse - x[v].at[k] * along;
      if (p.grad_joined != nullptr) {
        const Wide more = (reinterpret_cast<const Wide*>(p.grad_joined) + row * per_row)[i];
        for (int k = 0; k < count; ++k) by_joined.at[k] += more.at[k];
      }
      if constexpr (is_scaled) spread_scaled(p, row, per_row, i, by_joined, sums, v);
      else spread(p, row, per_row, i, by_joined);
    }
  }

  static INGOT_DEVICE void spread(const cpu::JoinNormProblem& p, int64_t row, int64_t per_row, int64_t i, const Wide& by_joined) {
    (reinterpret_cast<Wide*>(p.grad_residual) + row * per_row)[i] = by_joined;
    if (p.branch == nullptr) return;
    Narrow by_branch;
    for (int k = 0; k < count; ++k) from_float(by_joined.at[k], by_branch.at[k]);
    (static_cast<Narrow*>(p.grad_branch) + row * per_row)[i] = by_branch;
  }

  static INGOT_DEVICE void spread_scaled(const cpu::JoinNormProblem& p, int64_t row, int64_t per_row, int64_t i, const Wide& by_joined,
                                         Wide (&sums)[kSums][vectors], int v) {
    const Wide residual = (reinterpret_cast<const Wide*>(p.residual) + row * per_row)[i];
    const Narrow branch = (static_cast<const Narrow*>(p.branch) + row * per_row)[i];
    Wide by_residual;
    Narrow by_branch;
    for (int k = 0; k < count; ++k) {
      const int64_t column = i * count + k;
      const float d = by_joined.at[k], residual_scale = p.residual_scale[column], branch_scale = p.branch_scale[column];
      sums[cpu::kGradResidualScale][v].at[k] += d * (residual.at[k] + p.residual_bias[column]);
      sums[cpu::kGradResidualBias][v].at[k] += d * residual_scale;
      sums[cpu::kGradBranchScale][v].at[k] += d * (to_float(branch.at[k]) + p.branch_bias[column]);
      sums[cpu::kGradBranchBias][v].at[k] += d * branch_scale;
      by_residual.at[k] = d * residual_scale;
      from_float(d * branch_scale, by_branch.at[k]);
    }
    (reinterpret_cast<Wide*>(p.grad_residual) + row * per_row)[i] = by_residual;
    (static_cast<Narrow*>(p.grad_branch) + row * per_row)[i] = by_branch;
  }
};

/// with(Vector of T, a thread's vectors as a Constant, threads): the fewest vectors that a block of up to 512 threads needs.
template <class T, int count, class With>
auto spread_row(int64_t width, const With& with) {
  const int64_t per_row = width / count;
  const auto threads = static_cast<int>((per_row < 512 ? per_row + 63 : 512) / 64 * 64);
  if (per_row <= threads) return with(Vector<T, count>{}, Constant<1>{}, threads);
  if (per_row <= 2 * threads) return with(Vector<T, count>{}, Constant<2>{}, threads);
  if (per_row <= 4 * threads) return with(Vector<T, count>{}, Constant<4>{}, threads);
  return with(Vector<T, count>{}, Constant<8>{}, threads);
}

template <class With>
auto spread_join_norm(const cpu::JoinNormProblem& p, const With& with) {
  bool has_vectors = p.width % 4 == 0;
  for (const void* address :
       {static_cast<const void*>(p.residual), p.branch, static_cast<const void*>(p.joined), static_cast<const void*>(p.weight),
        static_cast<const void*>(p.normed), static_cast<const void*>(p.grad_joined), p.grad_normed,
        static_cast<const void*>(p.grad_residual), static_cast<const void*>(p.grad_branch), static_cast<const void*>(p.sums)})
    has_vectors = has_vectors && is_aligned(address);
  if (p.is_bf16) return has_vectors ? spread_row<Bf16, 4>(p.width, with) : spread_row<Bf16, 1>(p.width, with);
  return has_vectors ? spread_row<float, 4>(p.width, with) : spread_row<float, 1>(p.width, with);
}

template <class Launcher>
auto join_norm_forward(const cpu::JoinNormProblem& p, const Launcher& launcher) {
  return spread_join_norm(p, [&]<class T, int count, int vectors>(Vector<T, count>, Constant<vectors>, int threads) {
    return launcher.template run<JoinNormForward<T, count, vectors>>(p.rows, threads, p);
  });
}
/// A block for each run of p.sums.
template <class Launcher>
auto join_norm_backward(const cpu::JoinNormProblem& p, const Launcher& launcher) {
  return spread_join_norm(p, [&]<class T, int count, int vectors>(Vector<T, count>, Constant<vectors>, int threads) {
    if constexpr (vectors <= 2)
      if (p.residual_scale != nullptr) return launcher.template run<JoinNormBackward<T, count, vectors, true>>(p.runs, threads, p);
    return launcher.template run<JoinNormBackward<T, count, vectors, false>>(p.runs, threads, p);
  });
}

}  // namespace INGOT_WAVE_NAMESPACE
}  // namespace ingot::kernels::gpu
