// The fused attention kernel for CPUs, fp32 and bf16; see kernels/attention.h for the meaning of the arguments, which must
// have been checked. bf16 is widened tile by tile; products, softmax and sums are fp32. Work areas: packed keys and values
// (2 or 3 times k, v in fp32) and, in the backward pass, sums of grad_k and grad_v for each part of the work.
#pragma once

#include "kernels/attention.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/isa.h"

namespace ingot::kernels::cpu {

const AttentionTiles& attention_tiles(Isa isa);

AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule,
                                  const AttentionMask& mask, const AttentionTiles& tiles = attention_tiles(best_isa()));
/// Whether few enough queries see the last of the keys for the pages to be read where they lie.
bool decodes(const at::Tensor& q, const Pages& pages, const AttentionMask& mask);
AttentionOutput paged_attention(const at::Tensor& q, const Pages& pages, const ScoreRule& rule, const AttentionMask& mask);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                                                  const ScoreRule& rule, const AttentionMask& mask,
                                                                  const AttentionTiles& tiles = attention_tiles(best_isa()));

AttentionScratch attention_scratch(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t keys);

}  // namespace ingot::kernels::cpu
