#include "kernels/activation.h"

#include "base/work_scope.h"
#include "kernels/cpu/rows_activation.h"
#include "kernels/differentiable.h"
#include "kernels/reference/reference.h"
#include "kernels/row_kernel.h"

namespace ingot::kernels {
namespace {

struct SwigluFunction : Function<SwigluFunction, WorkKind::activations> {
  static at::Tensor forward(Context& context, const at::Tensor& gate_up) {
    context.save({gate_up});
    auto sizes = gate_up.sizes().vec();
    sizes.back() /= 2;
    return swiglu_forward(gate_up.reshape({-1, gate_up.size(-1)}), {}).view(sizes);
  }
  static TensorList backward(Context& context, const TensorList& grads) {
    const auto gate_up = context.saved()[0];
    const auto rows = gate_up.reshape({-1, gate_up.size(-1)});
    return {swiglu_backward(grads[0].reshape({rows.size(0), -1}), rows, {}).first.view(gate_up.sizes())};
  }
};

constexpr const char *kForward = "ingot_swiglu_forward", *kBackward = "ingot_swiglu_backward";

cpu::SwigluProblem problem_of(const at::Tensor& gate_up) {
  cpu::SwigluProblem p{};
  p.rows = gate_up.size(0);
  p.width = gate_up.size(1) / 2;
  p.is_bf16 = gate_up.scalar_type() == at::kBFloat16;
  return p;
}

bool is_fused(const at::Tensor& gate_up, const at::Tensor& row_weight, const char* symbol) {
  return takes_rows(gate_up, symbol) && (!row_weight.defined() || row_weight.scalar_type() == at::kFloat);
}

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up) {
  const base::WorkScope scope("swiglu", base::WorkKind::activations);
  return takes_rows(gate_up, kForward) || device::is_gpu(gate_up) ? SwigluFunction::apply(gate_up) : reference::swiglu(gate_up);
}

at::Tensor swiglu_forward(const at::Tensor& gate_up_in, const at::Tensor& row_weight) {
  const base::WorkScope scope("swiglu", base::WorkKind::activations);
  if (!is_fused(gate_up_in, row_weight, kForward)) {
    const auto wide = reference::accumulation_type(gate_up_in.scalar_type());
    const auto halves = gate_up_in.chunk(2, -1);
    auto activated = at::silu(halves[0].to(wide));
    if (row_weight.defined()) activated.mul_(row_weight.unsqueeze(-1));
    auto out = at::empty(halves[1].sizes(), gate_up_in.options());
    at::mul_out(out, activated, halves[1]);  // in the wider type
    return out;
  }
  const auto gate_up = gate_up_in.contiguous(), weight = row_weight.defined() ? row_weight.contiguous() : row_weight;
  const auto p = problem_of(gate_up);
  auto out = at::empty({p.rows, p.width}, gate_up.options());
  const auto bind = [](cpu::SwigluProblem& p, const RowTensors& t) {
    p.gate_up = address(t.in[0]);
    p.row_weight = numbers(t.in[1]);
    p.out = address(t.out[0]);
  };
  run_rows(RowCall<cpu::SwigluProblem>{"swiglu", kForward, {{gate_up, weight}, {out}, {}}, p, bind, 8}, cpu::swiglu_forward);
  return out;
}

std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad_in, const at::Tensor& gate_up_in, const at::Tensor& row_weight) {
  const base::WorkScope scope("swiglu", base::WorkKind::activations);
  if (is_fused(gate_up_in, row_weight, kBackward)) {
    const auto gate_up = gate_up_in.contiguous(), grad = grad_in.contiguous(),
               weight = row_weight.defined() ? row_weight.contiguous() : row_weight;
    auto grad_gate_up = at::empty_like(gate_up);
    auto grad_weight = weight.defined() ? at::empty_like(weight) : at::Tensor();
    const auto bind = [](cpu::SwigluProblem& p, const RowTensors& t) {
      p.grad = address(t.in[0]);
      p.gate_up = address(t.in[1]);
      p.row_weight = numbers(t.in[2]);
      p.grad_gate_up = address(t.out[0]);
      p.grad_row_weight = numbers(t.out[1]);
    };
    const RowCall<cpu::SwigluProblem> call{"swiglu.backward",   kBackward, {{grad, gate_up, weight}, {grad_gate_up, grad_weight}, {}},
                                           problem_of(gate_up), bind,      8};
    run_rows(call, cpu::swiglu_backward);
    return {grad_gate_up, grad_weight};
  }
  const auto wide = reference::accumulation_type(gate_up_in.scalar_type());
  const auto halves = gate_up_in.chunk(2, -1);
  const auto gate = halves[0].to(wide), silu = at::silu(gate);
  auto g = grad_in.to(wide);
  at::Tensor grad_weight;
  if (row_weight.defined()) {
    grad_weight = (g * silu).mul_(halves[1]).sum(-1).to(row_weight.scalar_type());
    g = g * row_weight.to(wide).unsqueeze(-1);
  }
  auto grad_gate_up = at::empty(gate_up_in.sizes(), gate_up_in.options());
  const auto grads = grad_gate_up.chunk(2, -1);
  auto grad_up = grads[1];
  at::mul_out(grad_up, g, silu);
  grads[0].copy_(at::silu_backward(g * halves[1], gate));
  return {grad_gate_up, grad_weight};
}

}  // namespace ingot::kernels
