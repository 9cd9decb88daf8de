// Softmax cross-entropy of one chunk of rows, forward and backward in one pass over the logits.
#pragma once

#include <ATen/ATen.h>

namespace ingot::kernels {

/// logits [rows, vocab] (fp32 or fp64, contiguous) are replaced by scale * (softmax - onehot(target)); rows whose target is
/// below 0 count for nothing and become 0. Returns the losses [rows] (0 where ignored), in the dtype of the logits, not scaled.
/// With want_gradient false the logits are left as they are.
at::Tensor cross_entropy_in_place(at::Tensor logits, const at::Tensor& targets, double scale, bool want_gradient);

}  // namespace ingot::kernels
