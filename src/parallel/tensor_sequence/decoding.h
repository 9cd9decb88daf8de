// Generation on a tensor_sequence axis: weights and cached keys and values both stay where they are, and what travels is as small as the
// new tokens. Every rank works on the same new tokens, of prompts as of texts:
//
//   projections   with the own heads' weights; the new queries, keys and values of all heads are gathered
//   cache         the ranks share out the pages of each text (layers::PageShare)
//   attention     all heads over the cached tokens of this rank; partial softmaxes, each with its log-sum-exp, are exchanged, and every
//                 rank merges those of its own heads
//   outputs       of the own heads, and of the own rows of a gated MLP, are parts of a sum over the ranks (parallel/tensor/axis.h)
//
// Elements that a rank receives per token and layer of attention, for p ranks, q and w channels of all query and of all kv heads of
// `head_dim` d, and h hidden:
//   (p-1)/p (q + 2 w) gathered; (p-1)/p q (1 + 1/d) of partial softmaxes, in fp32 (fp64); 2 (p-1)/p h of the sum
// The folded schedules send the weights instead, which pays from a few thousand tokens a pass on: more than a pass of generation has.
#pragma once

#include <vector>

#include "layers/attention.h"
#include "parallel/tensor_sequence/axis.h"

namespace ingot::parallel {

/// Own parts [batch, tokens, channels / ranks] of some tensors, in one message -> the tensors, [batch, tokens, channels].
std::vector<at::Tensor> gather_channels(const std::vector<at::Tensor>& parts, const TensorSequenceAxis& axis);

/// The new tokens' q [batch, tokens, heads, head_dim], k and v [batch, tokens, kv_heads, head_dim] of all heads -> what this rank's heads
/// make of all tokens so far, [batch, tokens, heads / ranks * head_dim]. `caches` have this rank's share of the pages, and take more.
at::Tensor attend_to_spread_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::ScoreRule& rule,
                                  int64_t window, layers::Sequences& sequences, const layers::Caches<layers::KeyValueCache>& caches,
                                  const TensorSequenceAxis& axis);

}  // namespace ingot::parallel
