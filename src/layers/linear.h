// GEMMs with weights of the model and their low-rank adapters. Gradient convention: a weight's gradient is added into Parameter::grad in
// fp32 during backward, a frozen one's is not made; the input's is returned to autograd.
#pragma once

#include "layers/parameter.h"

namespace ingot::layers {

/// x [..., in] times the transposes of weights [out_i, in], results side by side: [..., sum of out_i].
/// Saves x alone. Biases [out_i]: one for each weight, or none at all.
at::Tensor linear(const at::Tensor& x, const std::vector<Parameter*>& weights, const std::vector<Parameter*>& biases = {});

}  // namespace ingot::layers
