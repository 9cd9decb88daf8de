// Biases on the outputs of cut matrices.
#pragma once

#include "layers/parameter.h"

namespace ingot::models {

/// Biases of outputs are added once, to the whole sum. `bias` may be null.
inline at::Tensor with_bias(const at::Tensor& x, const layers::Parameter* bias) { return bias ? (x + bias->value).to(x.scalar_type()) : x; }

}  // namespace ingot::models
