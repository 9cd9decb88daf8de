// Embedding and loss where rows of the vocabulary, and tokens, are spread over the ranks of a tensor_sequence axis: the parts of the table
// go round in a ring (folded_layer.h), and each rank takes from each part what its own tokens need.
//
// Hops of table / p elements that a rank receives: embedding p - 1 forward, and p - 1 of the gradient backward; loss p - 1 for the
// statistics of the softmax and, with gradients, p - 1 again and p - 1 of the gradient.
// Gradient convention: the owner adds the table's gradient into Parameter::grad; the loss makes its gradients in the forward pass
// (layers/head.h).
#pragma once

#include "layers/head.h"
#include "layers/parameter.h"
#include "parallel/tensor_sequence/axis.h"

namespace ingot::parallel {

/// ids int64 [batch, own tokens] -> [batch, own tokens, width] of `dtype`.
at::Tensor folded_embedding(const at::Tensor& ids, layers::Parameter& table, at::ScalarType dtype, const TensorSequenceAxis& axis);

/// This rank's part of head_loss (layers/head.h): the sum over its own tokens.
at::Tensor folded_head_loss(const at::Tensor& hidden, layers::Parameter& table, const at::Tensor& targets, double scale,
                            const TensorSequenceAxis& axis, const layers::HeadRule& rule = {});

}  // namespace ingot::parallel
