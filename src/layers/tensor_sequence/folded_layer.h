// A layer of the form out = inner(x, weights) last^T whose weights are cut along what lies in between (a gated MLP: rows of gate and up,
// columns of down), over the ranks of a tensor_sequence axis. The parts of the weights go round in a ring: while a rank computes with one,
// the next arrives. Each rank begins with its own and has seen all after p - 1 hops; partial outputs add up in fp32 (fp64).
//
// Backward the parts go round once more, `inner` is computed again, and each part's gradient travels one step behind it, ending with its
// owner after p - 1 hops. Gradient convention: the owner adds it into Parameter::grad.
#pragma once

#include <functional>
#include <vector>

#include "layers/parameter.h"
#include "layers/tensor_sequence/axis.h"

namespace ingot::layers {

/// The weights of one rank's part, in the order in which they were given.
using PartOfWeights = std::vector<Parameter*>;

/// x [batch, own tokens, in] -> [batch, own tokens, out] in the dtype of the weights. `inner` is pure but for gradients of the weights it is
/// given, which are `weights` of any rank.
at::Tensor folded_layer(const at::Tensor& x, const std::vector<Parameter*>& weights, Parameter& last,
                        std::function<at::Tensor(const at::Tensor& x, const PartOfWeights& weights)> inner, const TensorSequenceAxis& axis);

}  // namespace ingot::layers
