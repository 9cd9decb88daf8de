// What the operations of this folder whose gradient is written by hand share.
#pragma once

#include "kernels/differentiable.h"
#include "layers/parameter.h"

namespace ingot::layers {

using kernels::Context;
using kernels::Function;
using kernels::TensorList;
using kernels::Work, kernels::WorkKind;

/// [..., n] as [rows, n] without a copy where possible.
inline at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace ingot::layers
