// A layer of the form out = inner(x, weights) last^T (layers::TokenwiseLayer) over the ranks of a tensor_sequence axis. The shards of the
// weights go round in a ring: while a rank computes with one, the next arrives. Each rank begins with its own and has seen all after p - 1
// hops; partial outputs add up in fp32 (fp64).
//
// Backward the shards go round once more, `inner` is computed again, and each shard's gradient travels one step behind it, ending with its
// owner after p - 1 hops. Gradient convention: the owner adds it into Parameter::grad.
#pragma once

#include "layers/schedulable.h"
#include "parallel/tensor_sequence/axis.h"

namespace ingot::parallel {

/// x [batch, own tokens, in] -> [batch, own tokens, out] in the dtype of the weights.
at::Tensor folded_layer(const at::Tensor& x, const layers::TokenwiseLayer& layer, const TensorSequenceAxis& axis);

}  // namespace ingot::parallel
