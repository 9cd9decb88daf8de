// Element-wise activations, fused where that saves passes over memory.
#pragma once

#include <utility>

#include "device/aten.h"

namespace ingot::kernels {

/// silu(gate) * up, with gate = gate_up[..., :f] and up = gate_up[..., f:].  [..., 2 f] -> [..., f]. Differentiable; saves only gate_up.
at::Tensor swiglu(const at::Tensor& gate_up);

/// The same without autograd, each row multiplied by row_weight [rows] fp32 when that is defined.  gate_up [rows, 2 f] -> [rows, f]
at::Tensor swiglu_forward(const at::Tensor& gate_up, const at::Tensor& row_weight);

/// Gradients of swiglu_forward: {grad of gate_up [rows, 2 f], grad of row_weight [rows] fp32 (undefined without weights)}.
std::pair<at::Tensor, at::Tensor> swiglu_backward(const at::Tensor& grad, const at::Tensor& gate_up, const at::Tensor& row_weight);

}  // namespace ingot::kernels
