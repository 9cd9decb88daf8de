// Linear attention on a GPU by kernels of our own (linear_attention_launch.h): bf16, with a gate per head, per channel or none, with or
// without the delta rule. Counting devices that stand for a GPU count it with its memory, the emulated device computes it by the CPU's
// kernels at its own pace.
#pragma once

#include <functional>

#include "kernels/gpu/linear_attention_problem.h"
#include "kernels/linear_attention.h"

namespace ingot::kernels::gpu {

/// Whether the kernels compute this: bf16, dims of keys and values that are multiples of 16 from 32 to 256, on a GPU whose library has
/// them.
bool takes_linear_attention(const LinearAttentionInputs& in);

/// As kernels::linear_attention_forward and _backward. `saved`: the states in front of parts of the sequence, [batch, heads, parts,
/// key_dim, value_dim]; with the delta rule of one part.
LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state);
LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& saved);

/// The same with `run` in the place of the kernels, for tests; `parts`: into how many the sequence is cut, 1 with the delta rule.
using RunLinearAttention = std::function<void(const LinearAttentionProblem&)>;
LinearAttentionOutput linear_attention_forward(const LinearAttentionInputs& in, const at::Tensor& initial_state, int64_t parts,
                                               const RunLinearAttention& run);
LinearAttentionGradients linear_attention_backward(const at::Tensor& grad_out, const at::Tensor& grad_final_state,
                                                   const LinearAttentionInputs& in, const at::Tensor& saved, const RunLinearAttention& run);

}  // namespace ingot::kernels::gpu
