// Normalisation and the residual stream. All sums are kept in fp32 (fp64 for fp64 input), whatever the dtype of x.
// Differentiable: gradients flow to every tensor that requires them.
#pragma once

#include <utility>

#include "device/aten.h"

namespace ingot::kernels {

/// x / sqrt(mean(x^2) + eps) * weight over the last dim; the result has dtype `out`.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType out);

/// The four vectors with which ZAYA1 scales a residual and the branch that joins it; all undefined = a plain sum.
struct ResidualScale {
  at::Tensor residual_scale, residual_bias, branch_scale, branch_bias;  // [hidden]
};

/// residual' = (residual + residual_bias) * residual_scale + (branch + branch_bias) * branch_scale, in the residual's dtype.
/// (x + b) * a, not a * x + b: as transformers computes ZAYA1, not as its paper prints it. The branch's dtype may be narrower.
at::Tensor join_residual(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale);

/// join_residual followed by rms_norm of the sum, in one pass: {residual', normed of dtype `out`}.
std::pair<at::Tensor, at::Tensor> join_residual_and_norm(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale,
                                                         const at::Tensor& weight, double eps, at::ScalarType out);

}  // namespace ingot::kernels
