// Sinks: for each head a score that takes part in every query's softmax and has no value (gpt-oss, OpenAI 2025).
#pragma once

#include "device/aten.h"

namespace ingot::layers {

/// What attention made without sinks becomes what it is with them, in place: out [batch, seq, heads, channels] and log_sum_exp [batch,
/// heads, seq]. With both, attention's own backward pass is that of a softmax over the keys and the sink. `sinks` [heads], fp32 (fp64 for
/// fp64).
void see_sinks(const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& sinks);

/// The gradient of `sinks`, [heads], of these tokens; `out` and `log_sum_exp` with sinks.
at::Tensor gradient_of_sinks(const at::Tensor& grad_out, const at::Tensor& out, const at::Tensor& log_sum_exp, const at::Tensor& sinks);

}  // namespace ingot::layers
