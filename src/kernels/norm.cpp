#include "kernels/norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "kernels/cpu/rows_parallel.h"
#include "kernels/fp32_islands.h"
#include "kernels/reference/reference.h"

namespace ingot::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;
using Optional = std::optional<at::Tensor>;

at::Tensor or_undefined(const Optional& x) { return x.value_or(at::Tensor()); }
Optional if_defined(const at::Tensor& x) { return x.defined() ? Optional(x) : std::nullopt; }

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

// Saves residual, branch, the joined sum and one number per row. Gradient: see cpu/rows_norm.cpp.
struct JoinNormFunction : torch::autograd::Function<JoinNormFunction> {
  static variable_list forward(AutogradContext* context, const Variable& residual_in, const Optional& branch_in,
                               const Optional& residual_scale, const Optional& residual_bias, const Optional& branch_scale,
                               const Optional& branch_bias, const Optional& weight_in, double eps, at::ScalarType out) {
    const auto residual = residual_in.contiguous();
    const auto branch = branch_in ? branch_in->contiguous() : at::Tensor();
    const ResidualScale scale{or_undefined(residual_scale), or_undefined(residual_bias), or_undefined(branch_scale),
                              or_undefined(branch_bias)};
    const auto weight = or_undefined(weight_in);
    const bool is_bf16 = branch.defined() ? branch.scalar_type() == at::kBFloat16 : out == at::kBFloat16;
    auto p = problem_of(residual, branch, scale, weight, eps, is_bf16);
    at::Tensor joined = residual, normed, inverse;
    if (branch.defined()) {
      joined = at::empty_like(residual);
      p.joined = joined.data_ptr<float>();
    }
    if (weight.defined()) {
      normed = at::empty(residual.sizes(), residual.options().dtype(is_bf16 ? at::kBFloat16 : at::kFloat));
      inverse = at::empty({p.rows}, at::kFloat);
      p.normed = normed.data_ptr();
      p.inverse = inverse.data_ptr<float>();
    }
    cpu::parallel_rows(p.rows, 16, [&](int64_t begin, int64_t end) { cpu::row_kernels().join_norm_forward(p, begin, end); });
    context->save_for_backward({residual, branch, scale.residual_scale, scale.residual_bias, scale.branch_scale, scale.branch_bias, weight,
                                branch.defined() && weight.defined() ? joined : at::Tensor(), inverse});
    context->saved_data["is_bf16"] = is_bf16;
    context->set_materialize_grads(false);
    if (!branch.defined()) return {normed};
    if (!weight.defined()) return {joined};
    return {joined, normed};
  }

  static variable_list backward(AutogradContext* context, variable_list grads) {
    const auto saved = context->get_saved_variables();
    const auto &residual = saved[0], &branch = saved[1], &weight = saved[6];
    const ResidualScale scale{saved[2], saved[3], saved[4], saved[5]};
    auto p = problem_of(residual, branch, scale, weight, 0, context->saved_data["is_bf16"].toBool());
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
    const auto sums = cpu::sum_over_rows(p.rows, cpu::kJoinNormSums * p.width, [&](int64_t begin, int64_t end, float* out) {
                        cpu::row_kernels().join_norm_backward(p, begin, end, out);
                      }).view({cpu::kJoinNormSums, p.width});
    const auto sum = [&](int which, const at::Tensor& of) { return of.defined() ? sums[which] : at::Tensor(); };
    return {grad_residual,
            grad_branch,
            sum(cpu::kGradResidualScale, saved[2]),
            sum(cpu::kGradResidualBias, saved[3]),
            sum(cpu::kGradBranchScale, saved[4]),
            sum(cpu::kGradBranchBias, saved[5]),
            sum(cpu::kGradWeight, weight),
            Variable(),
            Variable()};
  }
};

variable_list join_norm(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& s, const at::Tensor& weight, double eps,
                        at::ScalarType out) {
  return JoinNormFunction::apply(residual, if_defined(branch), if_defined(s.residual_scale), if_defined(s.residual_bias),
                                 if_defined(s.branch_scale), if_defined(s.branch_bias), if_defined(weight), eps, out);
}

// The residual stream and all vectors are fp32, the branch fp32 or bf16.
bool is_fused(const at::Tensor& residual, const at::Tensor& vector) {
  return residual.is_cpu() && residual.scalar_type() == at::kFloat && (!vector.defined() || vector.scalar_type() == at::kFloat);
}

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType out) {
  if (!is_fused(x, weight) || (out != at::kFloat && out != at::kBFloat16)) return reference::rms_norm(x, weight, eps, out);
  return join_norm(x, {}, {}, weight, eps, out)[0];
}

at::Tensor join_residual(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale) {
  if (!is_fused(residual, scale.residual_scale) || !cpu::takes(branch)) return reference::join_residual(residual, branch, scale);
  return join_norm(residual, branch, scale, {}, 0, branch.scalar_type())[0];
}

std::pair<at::Tensor, at::Tensor> join_residual_and_norm(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale,
                                                         const at::Tensor& weight, double eps, at::ScalarType out) {
  if (!is_fused(residual, weight) || branch.scalar_type() != out || !cpu::takes(branch)) {
    auto joined = reference::join_residual(residual, branch, scale);
    auto normed = reference::rms_norm(joined, weight, eps, out);
    return {joined, normed};
  }
  auto both = join_norm(residual, branch, scale, weight, eps, out);
  return {both[0], both[1]};
}

}  // namespace ingot::kernels
