// Gated linear units, fused.
#pragma once

#include <utility>

#include "device/aten.h"
#include "kernels/gate.h"

namespace ingot::kernels {

/// act(gate) * up, with gate = gate_up[..., :f] and up = gate_up[..., f:].  [..., 2 f] -> [..., f]. Differentiable; saves only gate_up.
/// SwiGLU with Gate::silu, GeGLU with Gate::gelu_tanh.
at::Tensor glu(const at::Tensor& gate_up, Gate gate = Gate::silu);

/// The same without autograd, each row multiplied by row_weight [rows] fp32 when that is defined.  gate_up [rows, 2 f] -> [rows, f]
at::Tensor glu_forward(const at::Tensor& gate_up, const at::Tensor& row_weight, Gate gate = Gate::silu);

/// Gradients of glu_forward: {grad of gate_up [rows, 2 f], grad of row_weight [rows] fp32 (undefined without weights)}.
std::pair<at::Tensor, at::Tensor> glu_backward(const at::Tensor& grad, const at::Tensor& gate_up, const at::Tensor& row_weight,
                                               Gate gate = Gate::silu);
/// The same into contiguous tensors.
void glu_backward_into(const at::Tensor& grad_gate_up, const at::Tensor& grad_row_weight, const at::Tensor& grad, const at::Tensor& gate_up,
                       const at::Tensor& row_weight, Gate gate = Gate::silu);

}  // namespace ingot::kernels
