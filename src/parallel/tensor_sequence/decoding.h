// Generation on a tensor_sequence axis, after a prompt that went through the folded schedules: weights and cached keys and values both
// stay where they are, and what travels is as small as one token. Every rank works on the same new token of each row:
//
//   projections   with the own heads' weights; the new queries, keys and values of all heads are gathered
//   cache         position % ranks says who keeps the new keys and values
//   attention     all heads over the cached tokens of this rank; partial softmaxes, each with its log-sum-exp, are exchanged, and every
//                 rank merges those of its own heads
//   outputs       of the own heads, and of the own rows of a gated MLP, are parts of a sum over the ranks (parallel/tensor/axis.h)
//
// Elements that a rank receives per row and layer of attention, for p ranks, q and w channels of all query and of all kv heads of
// `head_dim` d, and h hidden:
//   (p-1)/p (q + 2 w) gathered; (p-1)/p q (1 + 1/d) of partial softmaxes, in fp32 (fp64); 2 (p-1)/p h of the sum
#pragma once

#include <vector>

#include "layers/attention.h"
#include "parallel/tensor_sequence/axis.h"

namespace ingot::parallel {

/// Own parts [batch, 1, channels / ranks] of some tensors, in one message -> the tensors, [batch, 1, channels].
std::vector<at::Tensor> gather_channels(const std::vector<at::Tensor>& parts, const TensorSequenceAxis& axis);

/// The new token's q [batch, 1, heads, head_dim], k and v [batch, 1, kv_heads, head_dim] of all heads, at `position` of its row -> what
/// this rank's heads make of all tokens so far, [batch, 1, heads / ranks * head_dim]. `cache` holds this rank's tokens.
at::Tensor attend_to_spread_cache(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const kernels::ScoreRule& rule,
                                  int64_t window, int64_t position, layers::KeyValueCache& cache, const TensorSequenceAxis& axis);

}  // namespace ingot::parallel
