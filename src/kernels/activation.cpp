#include "kernels/activation.h"

#include "kernels/reference/reference.h"

namespace ingot::kernels {

at::Tensor swiglu_forward(const at::Tensor& gate_up, const at::Tensor& row_weight) {
  const auto wide = reference::accumulation_type(gate_up.scalar_type());
  const auto halves = gate_up.to(wide).chunk(2, -1);
  auto out = at::silu(halves[0]) * halves[1];
  if (row_weight.defined()) out = out * row_weight.to(wide).unsqueeze(-1);
  return out.to(gate_up.scalar_type());
}

std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up, const at::Tensor& row_weight) {
  const auto wide = reference::accumulation_type(gate_up.scalar_type());
  const auto halves = gate_up.to(wide).chunk(2, -1);
  const auto sigmoid = at::sigmoid(halves[0]);
  const auto silu = halves[0] * sigmoid;
  auto g = grad.to(wide);
  at::Tensor grad_weight;
  if (row_weight.defined()) {
    grad_weight = (g * silu * halves[1]).sum(-1).to(row_weight.scalar_type());
    g = g * row_weight.to(wide).unsqueeze(-1);
  }
  const auto grad_gate = g * halves[1] * (sigmoid + silu * (1 - sigmoid));
  return {at::cat({grad_gate, g * silu}, -1).to(gate_up.scalar_type()), grad_weight};
}

}  // namespace ingot::kernels
