// Attention on a GPU by the flash kernels that libtorch brings (FlashAttention 2 on NVIDIA; AOTriton or CK on ROCm): memory linear in the
// sequence. Counting devices that stand for a GPU count it as the kernel "attention", as the CPU's is counted.
#pragma once

#include "kernels/attention.h"

namespace ingot::kernels::gpu {

/// Whether the flash kernels compute this: fp16 or bf16, heads of a multiple of 8 up to 256 channels, and queries that stand at the end of
/// the keys that they see, or behind all of them, whose scores have no cap. With borders of documents only whole sequences whose mask has
/// their offsets.
bool takes_flash_attention(const at::Tensor& q, const at::Tensor& k, const ScoreRule& rule, const AttentionMask& mask);

/// As kernels::attention_forward and attention_backward. The same inputs give the same bits: the backward pass sums in a fixed order.
AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule,
                                  const AttentionMask& mask);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                                                  const ScoreRule& rule, const AttentionMask& mask);

}  // namespace ingot::kernels::gpu
