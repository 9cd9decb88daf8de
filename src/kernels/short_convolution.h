// The short convolution in front of linear attention: each channel on its own sees its last few tokens, then SiLU.
// Differentiable in x and weight; a document's first tokens see zeros in place of the document before it.
#pragma once

#include "device/aten.h"

namespace ingot::kernels {

/// silu(sum over j of weight[:, 0, width - 1 - j] * x[t - j]), j < width.  x [batch, seq, channels] -> the same.
/// weight [channels, 1, width] as torch's conv1d has it, tap 0 the oldest token. is_start: bool [batch, seq] or undefined.
/// `tail` [batch, width - 1, channels]: the tokens before the first; undefined: zeros. No gradient goes to it.
at::Tensor short_convolution(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& is_start = {}, const at::Tensor& tail = {});

/// The tail for the tokens behind these: the last width - 1 of `tail` and x.
at::Tensor next_tail(const at::Tensor& x, const at::Tensor& tail, int64_t width);

}  // namespace ingot::kernels
