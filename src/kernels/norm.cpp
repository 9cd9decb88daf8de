#include "kernels/norm.h"

#include "base/work_scope.h"
#include "kernels/cpu/rows_norm.h"
#include "kernels/cpu/rows_parallel.h"
#include "kernels/differentiable.h"
#include "kernels/fp32_islands.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

// The problem without gradients; tensors must outlive it.
cpu::JoinNormProblem problem_of(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& s, const at::Tensor& weight,
                                double eps, bool is_bf16) {
  cpu::JoinNormProblem p{};
  p.width = residual.size(-1);
  p.rows = residual.numel() / p.width;
  p.is_bf16 = is_bf16;
  p.eps = eps;
  p.residual = cpu::floats(residual);
  p.branch = branch.defined() ? branch.const_data_ptr() : nullptr;
  p.residual_scale = cpu::floats(s.residual_scale);
  p.residual_bias = cpu::floats(s.residual_bias);
  p.branch_scale = cpu::floats(s.branch_scale);
  p.branch_bias = cpu::floats(s.branch_bias);
  p.weight = cpu::floats(weight);
  return p;
}

// What a trace calls it.
const char* name_of(const at::Tensor& branch, const ResidualScale& scale, const at::Tensor& weight, bool is_backward) {
  if (!branch.defined()) return is_backward ? "rms_norm.backward" : "rms_norm";
  if (scale.residual_scale.defined())
    return weight.defined() ? (is_backward ? "scaled_join_norm.backward" : "scaled_join_norm")
                            : (is_backward ? "scaled_join.backward" : "scaled_join");
  return weight.defined() ? (is_backward ? "join_norm.backward" : "join_norm") : (is_backward ? "join.backward" : "join");
}

// Saves residual, branch, the joined sum and one number per row. Gradient: see cpu/rows_norm.cpp.
struct JoinNormFunction : Function<JoinNormFunction, WorkKind::norms> {
  // All but the residual may be undefined.
  static TensorList forward(Context& context, const at::Tensor& residual_in, const at::Tensor& branch_in, const at::Tensor& residual_scale,
                            const at::Tensor& residual_bias, const at::Tensor& branch_scale, const at::Tensor& branch_bias,
                            const at::Tensor& weight, double eps, at::ScalarType out) {
    const auto residual = residual_in.contiguous();
    const auto branch = branch_in.defined() ? branch_in.contiguous() : branch_in;
    const ResidualScale scale{residual_scale, residual_bias, branch_scale, branch_bias};
    const bool is_bf16 = branch.defined() ? branch.scalar_type() == at::kBFloat16 : out == at::kBFloat16;
    auto p = problem_of(residual, branch, scale, weight, eps, is_bf16);
    at::Tensor joined = residual, normed, inverse;
    if (branch.defined()) {
      joined = at::empty_like(residual);
      p.joined = joined.data_ptr<float>();
    }
    if (weight.defined()) {
      normed = at::empty(residual.sizes(), residual.options().dtype(is_bf16 ? at::kBFloat16 : at::kFloat));
      inverse = at::empty({p.rows}, residual.options());
      p.normed = normed.data_ptr();
      p.inverse = inverse.data_ptr<float>();
    }
    if (!device::counted(name_of(branch, scale, weight, false), {residual, branch, weight},
                         {branch.defined() ? joined : at::Tensor(), normed, inverse}, 0))
      cpu::parallel_rows(p.rows, 16, [&](int64_t begin, int64_t end) { cpu::join_norm_forward(p, begin, end); });
    context.save({residual, branch, scale.residual_scale, scale.residual_bias, scale.branch_scale, scale.branch_bias, weight,
                  branch.defined() && weight.defined() ? joined : at::Tensor(), inverse});
    context.keep(is_bf16);
    context.leave_unused_gradients_undefined();
    if (!branch.defined()) return {normed};
    if (!weight.defined()) return {joined};
    return {joined, normed};
  }

  static TensorList backward(Context& context, const TensorList& grads) {
    const auto saved = context.saved();
    const auto &residual = saved[0], &branch = saved[1], &weight = saved[6];
    const ResidualScale scale{saved[2], saved[3], saved[4], saved[5]};
    auto p = problem_of(residual, branch, scale, weight, 0, context.kept<bool>());
    const auto grad_joined = branch.defined() && grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    const auto grad_normed = weight.defined() && grads.back().defined() ? grads.back().contiguous() : at::Tensor();
    auto grad_residual = at::empty_like(residual);
    auto grad_branch = branch.defined() ? at::empty_like(branch) : at::Tensor();
    p.joined = const_cast<float*>(cpu::floats(saved[7]));
    p.inverse = const_cast<float*>(cpu::floats(saved[8]));
    p.grad_joined = cpu::floats(grad_joined);
    p.grad_normed = grad_normed.defined() ? grad_normed.const_data_ptr() : nullptr;
    p.grad_residual = grad_residual.data_ptr<float>();
    p.grad_branch = grad_branch.defined() ? grad_branch.data_ptr() : nullptr;
    device::counted(name_of(branch, scale, weight, true), {residual, branch, weight, grad_joined, grad_normed},
                    {grad_residual, grad_branch}, 0);
    const auto sums = cpu::sum_over_rows(residual, p.rows, cpu::kJoinNormSums * p.width, [&](int64_t begin, int64_t end, float* out) {
                        cpu::join_norm_backward(p, begin, end, out);
                      }).view({cpu::kJoinNormSums, p.width});
    const auto sum = [&](int which, const at::Tensor& of) { return of.defined() ? sums[which] : at::Tensor(); };
    return {grad_residual,
            grad_branch,
            sum(cpu::kGradResidualScale, saved[2]),
            sum(cpu::kGradResidualBias, saved[3]),
            sum(cpu::kGradBranchScale, saved[4]),
            sum(cpu::kGradBranchBias, saved[5]),
            sum(cpu::kGradWeight, weight)};
  }
};

TensorList join_norm(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& s, const at::Tensor& weight, double eps,
                     at::ScalarType out) {
  return JoinNormFunction::apply(residual, branch, s.residual_scale, s.residual_bias, s.branch_scale, s.branch_bias, weight, eps, out);
}

// The residual stream and all vectors are fp32, the branch fp32 or bf16.
bool is_fused(const at::Tensor& residual, const at::Tensor& vector) {
  return device::is_cpu(residual) && residual.scalar_type() == at::kFloat && (!vector.defined() || vector.scalar_type() == at::kFloat);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType out) {
  const base::WorkScope scope("norm", base::WorkKind::norms);
  if (!is_fused(x, weight) || (out != at::kFloat && out != at::kBFloat16)) return reference::rms_norm(x, weight, eps, out);
  return join_norm(x, {}, {}, weight, eps, out)[0];
}

at::Tensor join_residual(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale) {
  const base::WorkScope scope("norm", base::WorkKind::norms);
  if (!is_fused(residual, scale.residual_scale) || !cpu::takes(branch)) return reference::join_residual(residual, branch, scale);
  return join_norm(residual, branch, scale, {}, 0, branch.scalar_type())[0];
}

std::pair<at::Tensor, at::Tensor> join_residual_and_norm(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale,
                                                         const at::Tensor& weight, double eps, at::ScalarType out) {
  const base::WorkScope scope("norm", base::WorkKind::norms);
  if (!is_fused(residual, weight) || branch.scalar_type() != out || !cpu::takes(branch)) {
    auto joined = reference::join_residual(residual, branch, scale);
    auto normed = reference::rms_norm(joined, weight, eps, out);
    return {joined, normed};
  }
  auto both = join_norm(residual, branch, scale, weight, eps, out);
  return {both[0], both[1]};
}

}  // namespace ingot::kernels
