// Residual joins and RMSNorm, forward and backward, one row at a time: the first pass over a row joins and sums squares, the
// second, while the row is in the cache, norms it.
#include "kernels/cpu/rows_norm.h"

#include "kernels/cpu/rows_block.h"

namespace ingot::kernels::cpu::INGOT_ISA {
namespace {

// a * (x + b), with null meaning 1 and 0.
INGOT_INLINE Float scaled(Float x, const float* scale, const float* bias, int64_t i, int64_t n) {
  return scale ? (x + load_some(bias + i, n)) * load_some(scale + i, n) : x;
}

template <class T>
void forward(const JoinNormProblem& p, int64_t begin, int64_t end) {
  for (int64_t row = begin; row < end; ++row) {
    const float* residual = p.residual + row * p.width;
    const T* branch = p.branch ? static_cast<const T*>(p.branch) + row * p.width : nullptr;
    const float* joined = branch ? p.joined + row * p.width : residual;
    Float squares{};
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t n = p.width - i;
      Float x = load_some(residual + i, n);
      if (branch) {
        x = scaled(x, p.residual_scale, p.residual_bias, i, n) + scaled(load_some(branch + i, n), p.branch_scale, p.branch_bias, i, n);
        if (n < kLanes) x = x * first_lanes(n);
        store_some(p.joined + row * p.width + i, x, n);
      }
      squares += x * x;
    }
    if (!p.weight) continue;
    const float mean = sum_of_lanes(squares)[0] / static_cast<float>(p.width);
    const float inverse = 1.0f / __builtin_sqrtf(mean + static_cast<float>(p.eps));
    p.inverse[row] = inverse;
    T* normed = static_cast<T*>(p.normed) + row * p.width;
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t n = p.width - i;
      store_some(normed + i, load_some(joined + i, n) * inverse * load_some(p.weight + i, n), n);
    }
  }
}

template <class T>
void backward(const JoinNormProblem& p, int64_t begin, int64_t end, float* sums) {
  const float scale = 1.0f / static_cast<float>(p.width);
  for (int64_t row = begin; row < end; ++row) {
    const int64_t at = row * p.width;
    const float* residual = p.residual + at;
    const T* branch = p.branch ? static_cast<const T*>(p.branch) + at : nullptr;
    const float* joined = branch ? p.joined + at : residual;
    const T* grad_normed = p.grad_normed ? static_cast<const T*>(p.grad_normed) + at : nullptr;
    float inverse = 0, along = 0;  // along: the part of the norm's gradient in the direction of the row
    if (grad_normed) {
      inverse = p.inverse[row];
      Float dot{};
      for (int64_t i = 0; i < p.width; i += kLanes) {
        const int64_t n = p.width - i;
        const Float x = load_some(joined + i, n), g = load_some(grad_normed + i, n);
        dot += g * load_some(p.weight + i, n) * x;
        add_to(sums + kGradWeight * p.width, i, g * x * inverse, n);
      }
      along = sum_of_lanes(dot)[0] * inverse * inverse * inverse * scale;
    }
    for (int64_t i = 0; i < p.width; i += kLanes) {
      const int64_t n = p.width - i;
      Float g = p.grad_joined ? load_some(p.grad_joined + at + i, n) : Float{};
      if (grad_normed) g += load_some(grad_normed + i, n) * load_some(p.weight + i, n) * inverse - load_some(joined + i, n) * along;
      if (!p.residual_scale) {
        store_some(p.grad_residual + at + i, g, n);
        if (branch) store_some(static_cast<T*>(p.grad_branch) + at + i, g, n);
        continue;
      }
      const Float residual_scale = load_some(p.residual_scale + i, n), branch_scale = load_some(p.branch_scale + i, n);
      add_to(sums + kGradResidualScale * p.width, i, g * (load_some(residual + i, n) + load_some(p.residual_bias + i, n)), n);
      add_to(sums + kGradResidualBias * p.width, i, g * residual_scale, n);
      add_to(sums + kGradBranchScale * p.width, i, g * (load_some(branch + i, n) + load_some(p.branch_bias + i, n)), n);
      add_to(sums + kGradBranchBias * p.width, i, g * branch_scale, n);
      store_some(p.grad_residual + at + i, g * residual_scale, n);
      store_some(static_cast<T*>(p.grad_branch) + at + i, g * branch_scale, n);
    }
  }
}

}  // namespace

void join_norm_forward(const JoinNormProblem& p, int64_t begin, int64_t end) {
  p.is_bf16 ? forward<bf16>(p, begin, end) : forward<float>(p, begin, end);
}
void join_norm_backward(const JoinNormProblem& p, int64_t begin, int64_t end, float* sums) {
  p.is_bf16 ? backward<bf16>(p, begin, end, sums) : backward<float>(p, begin, end, sums);
}

}  // namespace ingot::kernels::cpu::INGOT_ISA
