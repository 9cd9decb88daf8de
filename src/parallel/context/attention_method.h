// Causal attention of rows whose tokens are spread over the ranks of a context axis. Each rank has the queries, keys and values of its own
// tokens and gets the output for them: the same as of one rank, up to the order of additions.
//
//   ring        keys and values go round, one neighbour to the next, while the local ones are attended to; partial results are put
//               together as they come (running renormalisation). Backward they go round again, and their gradients behind them.
//   bidirectional_ring   the same with half of the kv heads going round the other way
//   allgather   every rank gets all keys and values, some kv heads at a time, the next ones under way meanwhile; backward again, and
//               gradients are reduce-scattered.
//   ulysses     tokens are exchanged for heads and back: each rank attends to whole rows with its share of the heads.
//
// Elements that a rank sends per pass, for p ranks, batch b, s tokens in a row, w = kv_heads head_dim, q = heads head_dim:
//   ring        forward 2 (p-1) b (s/p) w; backward the same, and 2 p b (s/p) w of gradients in fp32 (fp64); half of it each way where it
//               is bidirectional
//   allgather   forward 2 (p-1) b (s/p) w; backward twice that
//   ulysses     (p-1)/p b (s/p) (2 q + 2 w') in each pass, w' = w, or p head_dim where there are fewer kv heads than ranks
// A window cuts computation, not communication.
//
// A method is one file that defines one of these objects, and a line in attention_methods().
#pragma once

#include <string>
#include <vector>

#include "device/aten.h"

namespace ingot::parallel {

struct AttentionSpread;

struct AttentionMethod {
  const char* name;  // of parallel.context_method
  /// q [batch, chunks, length, heads, head_dim], k, v alike, sinks [heads] or undefined -> [batch, chunks * length, heads, head_dim].
  at::Tensor (*attend)(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& sinks,
                       const AttentionSpread& spread);
  /// Throws ConfigError when `ranks` ranks cannot share these heads out. Null: any.
  void (*check_heads)(int ranks, int64_t heads, int64_t kv_heads);
  /// Of messages between two ranks beside collectives of all: to how many ranks, and from how many, this one has a channel.
  int channels;
};

extern const AttentionMethod kRing, kBidirectionalRing, kAllGather, kUlysses;

const std::vector<const AttentionMethod*>& attention_methods();
/// Throws ConfigError for an unknown name.
const AttentionMethod& attention_method(const std::string& name);

}  // namespace ingot::parallel
