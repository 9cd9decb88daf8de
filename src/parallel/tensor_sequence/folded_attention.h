// Attention whose heads' weights and whose tokens are both spread over the ranks of a tensor_sequence axis. All ranks visit the parts of
// the weights in the same order: the owner broadcasts its part, everyone projects its own tokens with it, keys and values of these heads
// are gathered, each rank's queries attend to them, and what the output projection makes of that adds up in fp32 (fp64).
//
// While one part's queries attend, the next part arrives, is projected with, and its keys and values are gathered: the queries go in
// pieces, and the last piece covers the gather. So two parts of the weights are here at a time, and two gathers.
//
// Backward visits them again: projections are made and gathered once more, gradients of keys and values are reduce-scattered, those of the
// weights reduced to their owner, both while the next part's queries are worked on. Outputs of attention are kept.
// Gradient convention: the owner adds weight gradients into Parameter::grad.
#pragma once

#include "layers/schedulable.h"
#include "parallel/context/axis.h"
#include "parallel/tensor_sequence/axis.h"

namespace ingot::parallel {

/// Throws ConfigError when kv heads are neither a multiple nor a divisor of the ranks, or heads no multiple of them.
void check_folded_heads(int64_t heads, int64_t kv_heads, int64_t head_dim, int ranks);

/// x [batch, own tokens, hidden] -> [batch, own tokens, hidden] in the dtype of the weights. `tokens`: how the ranks share the tokens.
at::Tensor folded_attention(const at::Tensor& x, const layers::AttentionLayer& layer, layers::Sequences& sequences,
                            const TensorSequenceAxis& axis, const ContextAxis& tokens);

}  // namespace ingot::parallel
