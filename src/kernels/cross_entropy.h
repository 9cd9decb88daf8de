// Softmax cross-entropy of one chunk of rows, forward and backward in one pass over the logits, the gradient in the dtype that the next
// matmuls take; and in two halves for a
// vocabulary that is spread over ranks, who exchange three numbers a row in between.
#pragma once

#include <utility>

#include "device/aten.h"

namespace ingot::kernels {

/// logits [rows, vocab], fp32 or fp64, with rows of any stride. Returns the losses [rows] in their dtype, not scaled; rows whose target is
/// below 0 count for nothing: 0. `gradient` becomes scale * (softmax - onehot(target)): the logits themselves, or a tensor of their shape
/// and of any dtype, which is rounded to once, and then what the logits hold afterwards has no meaning. Undefined: none is wanted, and the
/// logits stay as they are. `z_loss`: the gradient, not the losses, is also that of z_loss times the square of log(sum(exp(logits))), which
/// keeps logits from drifting (PaLM, arXiv 2204.02311, section 5).
at::Tensor cross_entropy(at::Tensor logits, const at::Tensor& targets, double scale, const at::Tensor& gradient, double z_loss = 0);

/// First half: [rows, 3] = largest logit of this part of the vocabulary, sum of exp(logit - largest), and the target's logit, 0
/// where the target is elsewhere (targets: indices within this part, below 0 = not here). With want_gradient the logits
/// become exp(logit - largest).
at::Tensor cross_entropy_statistics(at::Tensor logits, const at::Tensor& targets, bool want_gradient);

/// What the statistics of all parts, [parts, rows, 3], say of the whole: losses [rows] (not yet 0 where ignored), and the
/// factors [rows] by which part `own` must multiply what the first half left to get its probabilities, and with z_loss the gradient of
/// that.
std::pair<at::Tensor, at::Tensor> combine_statistics(const at::Tensor& statistics, int64_t own, double z_loss = 0);

/// Second half: `gradient`, as above, from what the first left, 0 in rows that `ignored` marks.
void cross_entropy_gradient(at::Tensor exponentials, const at::Tensor& targets, const at::Tensor& factors, const at::Tensor& ignored,
                            double scale, at::Tensor gradient);

}  // namespace ingot::kernels
