// The fused attention kernels for CPUs, fp32 and bf16; see kernels/attention.h for the meaning of the arguments, which must have been
// checked. bf16 is multiplied as it is where the CPU has a unit for that, weights and their gradients rounded to bf16 as flash attention on
// GPUs does; elsewhere it is upcast tile by tile. Scores, softmax and sums are fp32. Work areas: packed keys and values (2 or 3 times k, v
// in fp32, or in bf16) and, in the backward pass, sums of grad_k and grad_v for each part of the work.
#pragma once

#include "kernels/attention.h"
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/isa.h"

namespace ingot::kernels::cpu {

const AttentionTiles& attention_tiles(Isa isa);
/// For bf16 alone, but with PairUnit::none, which is best_isa()'s.
const AttentionTiles& attention_tiles(PairUnit unit);
/// For a CPU's tensors, or those that are counted for a GPU with such kernels: plans for it do not depend on the CPU that makes them.
const AttentionTiles& best_attention_tiles(at::ScalarType dtype, at::Device device = at::kCPU);

AttentionOutput attention_forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const ScoreRule& rule,
                                  const AttentionMask& mask, const AttentionTiles& tiles);
/// Whether few enough queries see the last of the keys for the pages to be read where they lie.
bool decodes(const at::Tensor& q, const Pages& pages, const AttentionMask& mask);
AttentionOutput paged_attention(const at::Tensor& q, const Pages& pages, const ScoreRule& rule, const AttentionMask& mask);
std::tuple<at::Tensor, at::Tensor, at::Tensor> attention_backward(const at::Tensor& grad_out, const at::Tensor& q, const at::Tensor& k,
                                                                  const at::Tensor& v, const at::Tensor& out, const at::Tensor& log_sum_exp,
                                                                  const ScoreRule& rule, const AttentionMask& mask,
                                                                  const AttentionTiles& tiles);

AttentionScratch attention_scratch(int64_t batch, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t keys,
                                   at::ScalarType dtype);

}  // namespace ingot::kernels::cpu
