// Token embedding. Gradient convention: the table's gradient is added into Parameter::grad during backward.
#pragma once

#include "layers/parameter.h"

namespace ingot::layers {

/// ids int64 [batch, seq], table [vocab, hidden] -> [batch, seq, hidden] of `dtype`. Of a part of the vocabulary (a range of
/// rows): tokens of other parts are 0.
at::Tensor embedding(const at::Tensor& ids, Parameter& table, at::ScalarType dtype);

}  // namespace ingot::layers
