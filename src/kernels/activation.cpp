#include "kernels/activation.h"

#include <ATen/ops/gelu_backward.h>

#include "base/work_scope.h"
#include "kernels/cpu/rows_activation.h"
#include "kernels/differentiable.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

struct GluFunction : Function<GluFunction, WorkKind::activations> {
  static at::Tensor forward(Context& context, const at::Tensor& gate_up, Gate gate) {
    context.keep(gate);
    context.save({gate_up});
    auto sizes = gate_up.sizes().vec();
    sizes.back() /= 2;
    return glu_forward(gate_up.reshape({-1, gate_up.size(-1)}), {}, gate).view(sizes);
  }
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto gate_up = context.saved()[0];
    const auto rows = gate_up.reshape({-1, gate_up.size(-1)});
    return {glu_backward(grads[0].reshape({rows.size(0), -1}), rows, {}, context.kept<Gate>()).first.view(gate_up.sizes())};
  }
};

constexpr const char *kForward = "ingot_glu_forward", *kBackward = "ingot_glu_backward";

cpu::GluProblem problem_of(const at::Tensor& gate_up, Gate gate) {
  cpu::GluProblem p{};
  p.rows = gate_up.size(0);
  p.width = gate_up.size(1) / 2;
  p.is_bf16 = gate_up.scalar_type() == at::kBFloat16;
  p.gate = gate;
  return p;
}

bool is_fused(const at::Tensor& gate_up, const at::Tensor& row_weight, const char* symbol) {
  return takes_rows(gate_up, symbol) && (!row_weight.defined() || row_weight.scalar_type() == at::kFloat);
}

struct Names {
  const char *forward, *backward;
};
Names names_of(Gate gate) {
  switch (gate) {
    case Gate::silu: return {"swiglu", "swiglu.backward"};
    case Gate::gelu_tanh: return {"geglu", "geglu.backward"};
    case Gate::clamped: break;
  }
  return {"clamped_swiglu", "clamped_swiglu.backward"};
}

at::Tensor activated_backward(const at::Tensor& grad, const at::Tensor& x, Gate gate) {
  switch (gate) {
    case Gate::silu: return at::silu_backward(grad, x);
    case Gate::gelu_tanh: return at::gelu_backward(grad, x, "tanh");
    case Gate::clamped: break;
  }
  const double slope = kClampedSlope;
  const auto s = (x * slope).sigmoid();
  return (grad * (s + x * slope * s * (1 - s))).masked_fill(x.gt(kClampedLimit), 0);
}

// What multiplies, in `wide` where it is not the input as it is.
at::Tensor multiplier(const at::Tensor& up, Gate gate, at::ScalarType wide) {
  return gate == Gate::clamped ? reference::multiplier(up.to(wide), gate) : up;
}

}  // namespace

at::Tensor glu(const at::Tensor& gate_up, Gate gate) {
  const base::WorkScope scope(names_of(gate).forward, base::WorkKind::activations);
  return takes_rows(gate_up, kForward) || device::is_gpu(gate_up) ? GluFunction::apply(gate_up, gate) : reference::glu(gate_up, gate);
}

at::Tensor glu_forward(const at::Tensor& gate_up_in, const at::Tensor& row_weight, Gate gate) {
  const base::WorkScope scope(names_of(gate).forward, base::WorkKind::activations);
  if (!is_fused(gate_up_in, row_weight, kForward)) {
    const auto wide = reference::accumulation_type(gate_up_in.scalar_type());
    const auto halves = gate_up_in.chunk(2, -1);
    auto weighted = reference::activated(halves[0].to(wide), gate);
    if (row_weight.defined()) weighted.mul_(row_weight.unsqueeze(-1));
    auto out = at::empty(halves[1].sizes(), gate_up_in.options());
    at::mul_out(out, weighted, multiplier(halves[1], gate, wide));  // in the wider type
    return out;
  }
  const auto gate_up = gate_up_in.contiguous(), weight = row_weight.defined() ? row_weight.contiguous() : row_weight;
  const auto p = problem_of(gate_up, gate);
  auto out = at::empty({p.rows, p.width}, gate_up.options());
  const auto bind = [](cpu::GluProblem& p, const RowTensors& t) {
    p.gate_up = address(t.in[0]);
    p.row_weight = numbers(t.in[1]);
    p.out = address(t.out[0]);
  };
  run_rows(RowCall<cpu::GluProblem>{names_of(gate).forward, kForward, {{gate_up, weight}, {out}, {}}, p, bind, 8}, cpu::glu_forward);
  return out;
}

std::pair<at::Tensor, at::Tensor> glu_backward(const at::Tensor& grad, const at::Tensor& gate_up, const at::Tensor& row_weight, Gate gate) {
  const auto grad_gate_up = at::empty(gate_up.sizes(), gate_up.options());
  const auto grad_weight = row_weight.defined() ? at::empty(row_weight.sizes(), row_weight.options()) : at::Tensor();
  glu_backward_into(grad_gate_up, grad_weight, grad, gate_up, row_weight, gate);
  return {grad_gate_up, grad_weight};
}

void glu_backward_into(const at::Tensor& grad_gate_up, const at::Tensor& grad_weight, const at::Tensor& grad_in,
                       const at::Tensor& gate_up_in, const at::Tensor& row_weight, Gate gate_kind) {
  const base::WorkScope scope(names_of(gate_kind).forward, base::WorkKind::activations);
  if (is_fused(gate_up_in, row_weight, kBackward)) {
    const auto gate_up = gate_up_in.contiguous(), grad = grad_in.contiguous(),
               weight = row_weight.defined() ? row_weight.contiguous() : row_weight;
    const auto bind = [](cpu::GluProblem& p, const RowTensors& t) {
      p.grad = address(t.in[0]);
      p.gate_up = address(t.in[1]);
      p.row_weight = numbers(t.in[2]);
      p.grad_gate_up = address(t.out[0]);
      p.grad_row_weight = numbers(t.out[1]);
    };
    const RowCall<cpu::GluProblem> call{
        names_of(gate_kind).backward,   kBackward, {{grad, gate_up, weight}, {grad_gate_up, grad_weight}, {}},
        problem_of(gate_up, gate_kind), bind,      8};
    run_rows(call, cpu::glu_backward);
    return;
  }
  const auto wide = reference::accumulation_type(gate_up_in.scalar_type());
  const auto halves = gate_up_in.chunk(2, -1);
  const auto gate = halves[0].to(wide), act = reference::activated(gate, gate_kind), up = multiplier(halves[1], gate_kind, wide);
  auto g = grad_in.to(wide);
  if (row_weight.defined()) {
    grad_weight.copy_((g * act).mul_(up).sum(-1));
    g = g * row_weight.to(wide).unsqueeze(-1);
  }
  const auto grads = grad_gate_up.chunk(2, -1);
  auto grad_up = grads[1];
  at::mul_out(grad_up, g, act);
  if (gate_kind == Gate::clamped) grad_up.masked_fill_(halves[1].abs().gt(kClampedLimit), 0);
  grads[0].copy_(activated_backward(g * up, gate, gate_kind));
}

}  // namespace ingot::kernels
