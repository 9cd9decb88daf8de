// Residual joins and RMSNorm, forward and backward, one row at a time: the first pass over a row joins and sums squares, the
// second, while the row is in the cache, norms it.
#include "kernels/cpu/rows_norm.h"

#include <type_traits>

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

template <class T, bool has_branch, bool is_scaled>
void forward_of(const JoinNormProblem p, int64_t begin, int64_t end) {  // p by value: no store can change it
  for (int64_t row = begin; row < end; ++row) {
    const float* residual = p.residual + row * p.width;
    const T* branch = has_branch ? static_cast<const T*>(p.branch) + row * p.width : nullptr;
    float* joined = has_branch ? p.joined + row * p.width : nullptr;
    Float squares{};
    for_vectors(p.width, [&](int64_t i, auto n) {
      Float x = load_some(residual + i, n);
      if constexpr (has_branch) {
        Float y = load_some(branch + i, n);
        if constexpr (is_scaled) {
          prefetch_ahead(residual + i), prefetch_ahead(branch + i);
          x = (x + load_some(p.residual_bias + i, n)) * load_some(p.residual_scale + i, n);
          y = (y + load_some(p.branch_bias + i, n)) * load_some(p.branch_scale + i, n);
        }
        x += y;
        store_some(joined + i, x, n);
      }
      squares = fused(x, x, squares);
    });
    if (!p.weight) continue;
    const float mean = sum_of_lanes(squares)[0] / static_cast<float>(p.width);
    const float inverse = 1.0f / __builtin_sqrtf(mean + static_cast<float>(p.eps));
    p.inverse[row] = inverse;
    const float* x = has_branch ? joined : residual;
    T* normed = static_cast<T*>(p.normed) + row * p.width;
    for_vectors(p.width, [&](int64_t i, auto n) { store_some(normed + i, load_some(x + i, n) * inverse * load_some(p.weight + i, n), n); });
  }
}

template <class T>
void forward(const JoinNormProblem& p, int64_t begin, int64_t end) {
  p.residual_scale ? forward_of<T, true, true>(p, begin, end)
  : p.branch       ? forward_of<T, true, false>(p, begin, end)
                   : forward_of<T, false, false>(p, begin, end);
}

// kRows rows side by side, so that the sums of a column are loaded and stored once for all of them; each is added to in the order of the
// rows.
constexpr int64_t kRows = 4;

// The gradient of a row by its norm is inverse * grad_normed * weight - along * joined.
template <class T>
INGOT_INLINE float along_row(const JoinNormProblem& p, const float* joined, const T* grad_normed, float inverse) {
  Float dot{};
  for_vectors(p.width, [&](int64_t i, auto n) {
    prefetch_ahead(grad_normed + i), prefetch_ahead(joined + i);
    dot = fused(load_some(grad_normed + i, n) * load_some(p.weight + i, n), load_some(joined + i, n), dot);
  });
  return sum_of_lanes(dot)[0] * inverse * inverse * inverse * (1.0f / static_cast<float>(p.width));
}

// Of `rows` rows from `row` on. Sums of biases are left as those of the gradients alone, in kGradResidualBias.
template <class T, int64_t rows, bool has_norm, bool has_branch, bool is_scaled>
INGOT_INLINE void backward_of_rows(const JoinNormProblem& p, int64_t row, float* sums) {
  const float *residual[rows], *joined[rows], *grad_joined[rows];
  const T *branch[rows], *grad_normed[rows];
  float *grad_residual[rows], inverse[rows], along[rows];
  T* grad_branch[rows];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t at = (row + r) * p.width;
    residual[r] = p.residual + at;
    branch[r] = has_branch ? static_cast<const T*>(p.branch) + at : nullptr;
    joined[r] = has_branch ? p.joined + at : residual[r];
    grad_joined[r] = p.grad_joined ? p.grad_joined + at : nullptr;
    grad_normed[r] = has_norm ? static_cast<const T*>(p.grad_normed) + at : nullptr;
    grad_residual[r] = p.grad_residual + at;
    grad_branch[r] = has_branch ? static_cast<T*>(p.grad_branch) + at : nullptr;
    inverse[r] = has_norm ? p.inverse[row + r] : 0;
    along[r] = has_norm ? along_row(p, joined[r], grad_normed[r], inverse[r]) : 0;
  }
  const auto sum_at = [&](JoinNormSum which, int64_t i) { return sums + which * p.width + i; };
  const bool has_grad_joined = p.grad_joined;
  for_vectors(p.width, [&](int64_t i, auto n) {
    Float weight{}, of_weight{}, residual_scale{}, branch_scale{}, of_residual_scale{}, of_branch_scale{}, of_bias{};
    if constexpr (has_norm) weight = load_some(p.weight + i, n), of_weight = load_some(sum_at(kGradWeight, i), n);
    if constexpr (is_scaled) {
      residual_scale = load_some(p.residual_scale + i, n), branch_scale = load_some(p.branch_scale + i, n);
      of_residual_scale = load_some(sum_at(kGradResidualScale, i), n), of_branch_scale = load_some(sum_at(kGradBranchScale, i), n);
      of_bias = load_some(sum_at(kGradResidualBias, i), n);
    }
    for (int64_t r = 0; r < rows; ++r) {
      if (has_grad_joined) prefetch(grad_joined[r] + rows * p.width + i);
      if constexpr (is_scaled) prefetch(residual[r] + rows * p.width + i), prefetch(branch[r] + rows * p.width + i);
      Float g = has_grad_joined ? load_some(grad_joined[r] + i, n) : Float{};
      if constexpr (has_norm) {
        const Float x = load_some(joined[r] + i, n), by_norm = load_some(grad_normed[r] + i, n);
        of_weight = fused(by_norm * x, broadcast(inverse[r]), of_weight);
        g += fused(by_norm * weight, broadcast(inverse[r]), -(x * along[r]));
      }
      if constexpr (is_scaled) {
        of_residual_scale = fused(g, load_some(residual[r] + i, n), of_residual_scale);
        of_branch_scale = fused(g, load_some(branch[r] + i, n), of_branch_scale);
        of_bias += g;
        store_some(grad_residual[r] + i, g * residual_scale, n);
        store_some(grad_branch[r] + i, g * branch_scale, n);
      } else {
        store_some(grad_residual[r] + i, g, n);
        if constexpr (has_branch) store_some(grad_branch[r] + i, g, n);
      }
    }
    if constexpr (has_norm) store_some(sum_at(kGradWeight, i), of_weight, n);
    if constexpr (is_scaled) {
      store_some(sum_at(kGradResidualScale, i), of_residual_scale, n), store_some(sum_at(kGradBranchScale, i), of_branch_scale, n);
      store_some(sum_at(kGradResidualBias, i), of_bias, n);
    }
  });
}

template <class T, bool has_norm, bool has_branch, bool is_scaled>
void backward_of(const JoinNormProblem p, int64_t begin, int64_t end, float* sums) {  // p by value: no store can change it
  int64_t row = begin;
  for (; row + kRows <= end; row += kRows) backward_of_rows<T, kRows, has_norm, has_branch, is_scaled>(p, row, sums);
  for (; row < end; ++row) backward_of_rows<T, 1, has_norm, has_branch, is_scaled>(p, row, sums);
  if constexpr (!is_scaled) return;
  for (int64_t i = 0; i < p.width; i += kLanes) {
    const int64_t n = p.width - i;
    const Float g = load_some(sums + kGradResidualBias * p.width + i, n);
    add_to(sums + kGradResidualScale * p.width, i, g * load_some(p.residual_bias + i, n), n);
    add_to(sums + kGradBranchScale * p.width, i, g * load_some(p.branch_bias + i, n), n);
    store_some(sums + kGradResidualBias * p.width + i, g * load_some(p.residual_scale + i, n), n);
    store_some(sums + kGradBranchBias * p.width + i, g * load_some(p.branch_scale + i, n), n);
  }
}

template <class T>
void backward(const JoinNormProblem& p, int64_t begin, int64_t end, float* sums) {
  const auto with_norm = [&]<bool has_norm>(std::bool_constant<has_norm>) {
    p.residual_scale ? backward_of<T, has_norm, true, true>(p, begin, end, sums)
    : p.branch       ? backward_of<T, has_norm, true, false>(p, begin, end, sums)
                     : backward_of<T, has_norm, false, false>(p, begin, end, sums);
  };
  p.grad_normed ? with_norm(std::true_type()) : with_norm(std::false_type());
}

}  // namespace

void join_norm_forward(const JoinNormProblem& p, int64_t begin, int64_t end) {
  p.is_bf16 ? forward<bf16>(p, begin, end) : forward<float>(p, begin, end);
}
void join_norm_backward(const JoinNormProblem& p, int64_t begin, int64_t end, float* sums) {
  p.is_bf16 ? backward<bf16>(p, begin, end, sums) : backward<float>(p, begin, end, sums);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
