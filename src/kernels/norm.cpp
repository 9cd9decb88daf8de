#include "kernels/norm.h"

#include "base/work_scope.h"
#include "kernels/cpu/rows_norm.h"
#include "kernels/differentiable.h"
#include "kernels/fp32_islands.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

constexpr const char *kForward = "ingot_join_norm_forward", *kBackward = "ingot_join_norm_backward";

cpu::JoinNormProblem problem_of(const at::Tensor& residual, double eps, bool is_bf16) {
  cpu::JoinNormProblem p{};
  p.width = residual.size(-1);
  p.rows = residual.numel() / p.width;
  p.is_bf16 = is_bf16;
  p.eps = eps;
  return p;
}

TensorList list_of(const ResidualScale& s) { return {s.residual_scale, s.residual_bias, s.branch_scale, s.branch_bias}; }

// What both passes read: residual, branch, weight; scales and biases.
void bind_inputs(cpu::JoinNormProblem& p, const TensorList& in, const TensorList& scale) {
  p.residual = numbers(in[0]);
  p.branch = address(in[1]);
  p.weight = numbers(in[2]);
  p.residual_scale = numbers(scale[0]);
  p.residual_bias = numbers(scale[1]);
  p.branch_scale = numbers(scale[2]);
  p.branch_bias = numbers(scale[3]);
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
    const auto p = problem_of(residual, eps, is_bf16);
    at::Tensor joined, normed, inverse;
    if (branch.defined()) joined = at::empty_like(residual);
    if (weight.defined()) {
      normed = at::empty(residual.sizes(), residual.options().dtype(is_bf16 ? at::kBFloat16 : at::kFloat));
      inverse = at::empty({p.rows}, residual.options());
    }
    const auto bind = [](cpu::JoinNormProblem& p, const RowTensors& t) {
      bind_inputs(p, t.in, t.more);
      p.joined = numbers(t.out[0]);
      p.normed = address(t.out[1]);
      p.inverse = numbers(t.out[2]);
    };
    const RowCall<cpu::JoinNormProblem> call{
        name_of(branch, scale, weight, false), kForward, {{residual, branch, weight}, {joined, normed, inverse}, list_of(scale)}, p, bind};
    run_rows(call, cpu::join_norm_forward);
    context.save({residual, branch, scale.residual_scale, scale.residual_bias, scale.branch_scale, scale.branch_bias, weight,
                  weight.defined() ? joined : at::Tensor(), inverse});
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
    const auto grad_joined = branch.defined() && grads[0].defined() ? grads[0].contiguous() : at::Tensor();
    const auto grad_normed = weight.defined() && grads.back().defined() ? grads.back().contiguous() : at::Tensor();
    auto grad_residual = at::empty_like(residual);
    auto grad_branch = branch.defined() ? at::empty_like(branch) : at::Tensor();
    auto more = list_of(scale);
    more.insert(more.end(), {saved[7], saved[8]});
    const auto bind = [](cpu::JoinNormProblem& p, const RowTensors& t) {
      bind_inputs(p, t.in, t.more);
      p.joined = numbers(t.more[4]);
      p.inverse = numbers(t.more[5]);
      p.grad_joined = numbers(t.in[3]);
      p.grad_normed = address(t.in[4]);
      p.grad_residual = numbers(t.out[0]);
      p.grad_branch = address(t.out[1]);
    };
    const RowCall<cpu::JoinNormProblem> call{name_of(branch, scale, weight, true),
                                             kBackward,
                                             {{residual, branch, weight, grad_joined, grad_normed}, {grad_residual, grad_branch}, more},
                                             problem_of(residual, 0, context.kept<bool>()),
                                             bind};
    const int64_t used = scale.residual_scale.defined() ? cpu::kJoinNormSums : weight.defined() ? 1 : 0;
    const auto sums = run_and_sum_rows(call, cpu::join_norm_backward, cpu::kJoinNormSums, used, residual.size(-1));
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
bool is_fused(const at::Tensor& residual, const at::Tensor& vector, bool is_scaled) {
  if (!takes_rows(residual, kForward) || residual.scalar_type() != at::kFloat) return false;
  if (vector.defined() && vector.scalar_type() != at::kFloat) return false;
  return device::is_cpu(residual) || cpu::takes_width(residual.size(-1), is_scaled);
}
bool is_fused_branch(const at::Tensor& branch) { return takes_rows(branch, kForward); }

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps, at::ScalarType out) {
  const base::WorkScope scope("norm", base::WorkKind::norms);
  if (!is_fused(x, weight, false) || (out != at::kFloat && out != at::kBFloat16)) return reference::rms_norm(x, weight, eps, out);
  return join_norm(x, {}, {}, weight, eps, out)[0];
}

at::Tensor join_residual(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale) {
  const base::WorkScope scope("norm", base::WorkKind::norms);
  if (!is_fused(residual, scale.residual_scale, scale.residual_scale.defined()) || !is_fused_branch(branch))
    return reference::join_residual(residual, branch, scale);
  return join_norm(residual, branch, scale, {}, 0, branch.scalar_type())[0];
}

std::pair<at::Tensor, at::Tensor> join_residual_and_norm(const at::Tensor& residual, const at::Tensor& branch, const ResidualScale& scale,
                                                         const at::Tensor& weight, double eps, at::ScalarType out) {
  const base::WorkScope scope("norm", base::WorkKind::norms);
  if (!is_fused(residual, weight, scale.residual_scale.defined()) || branch.scalar_type() != out || !is_fused_branch(branch)) {
    auto joined = reference::join_residual(residual, branch, scale);
    auto normed = reference::rms_norm(joined, weight, eps, out);
    return {joined, normed};
  }
  auto both = join_norm(residual, branch, scale, weight, eps, out);
  return {both[0], both[1]};
}

}  // namespace ingot::kernels
