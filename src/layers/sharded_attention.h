// Causal attention of sequences whose tokens are spread over the ranks of a sequence axis. Each rank has the queries, keys and
// values of its own tokens and gets the output for them: the same as of one rank, up to the order of additions.
//
//   ring        keys and values go round, one neighbour to the next, while those at hand are attended to; partial results are put
//               together as they come (running renormalisation). Backward they go round again, and their gradients behind them.
//   allgather   every rank gets all keys and values, some kv heads at a time, the next ones under way meanwhile; backward again, and
//               gradients are reduce-scattered.
//   ulysses     tokens are exchanged for heads and back: each rank attends to whole sequences with its share of the heads.
//
// Elements that a rank sends per pass, for p ranks, batch b, s tokens in a sequence, w = kv_heads head_dim, q = heads head_dim:
//   ring        forward 2 (p-1) b (s/p) w; backward the same, and 2 p b (s/p) w of gradients in fp32 (fp64)
//   allgather   forward 2 (p-1) b (s/p) w; backward twice that
//   ulysses     (p-1)/p b (s/p) (2 q + 2 w') in each pass, w' = w, or p head_dim where there are fewer kv heads than ranks
// A window cuts computation, not what travels.
#pragma once

#include <ATen/ATen.h>

#include "layers/sequences.h"

namespace ingot::layers {

/// q [batch, chunks, chunk length, heads, head_dim], k and v alike with kv_heads, in any strides of the first three dims
/// -> [batch, own tokens, heads, head_dim]. Ulysses: the ranks divide heads, and kv_heads or kv_heads them.
at::Tensor sharded_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale, int64_t window,
                             const Sequences& sequences);

/// Throws ConfigError when the method cannot share these heads out.
void check_heads(const SequenceAxis& axis, int64_t heads, int64_t kv_heads);

}  // namespace ingot::layers
