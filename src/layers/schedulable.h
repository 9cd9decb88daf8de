// What schedules (parallel/layer_schedule.h) see of the layers that they run: which weights may be sharded along what lies between input
// and output, and how to compute with shards of them, a rank's own or another's.
#pragma once

#include <array>
#include <functional>
#include <vector>

#include "kernels/cca.h"
#include "layers/attention.h"
#include "layers/parameter.h"
#include "layers/sequences.h"

namespace ingot::layers {

/// The weights of one rank's shard, in the order in which a layer has them.
using ShardOfWeights = std::vector<Parameter*>;

/// A layer that works on each token alone, out = inner(x, weights) last^T: rows of `weights` and columns of `last` are sharded alike (a
/// gated MLP: rows of gate and up, columns of down).
struct TokenwiseLayer {
  ShardOfWeights weights;
  Parameter* last = nullptr;
  /// Pure but for gradients of the weights that it is given, which are `weights` of any rank.
  std::function<at::Tensor(const at::Tensor& x, const ShardOfWeights& weights)> inner;
};

/// What decoding must remember of earlier tokens; each kind of attention uses its part.
struct AttentionCache {
  KeyValueCache key_values;
  kernels::CcaTail tail;  // of CCA; kept in fp32
  /// The tail without the last tokens of what was fed last; empty where there is none.
  std::function<kernels::CcaTail(int64_t tokens)> tail_without;
};

/// Softmax attention with its projections. Rows of the projections and columns of the output projection are sharded by heads. Lives as long
/// as the model: graphs point to it.
class AttentionLayer {
 public:
  virtual ~AttentionLayer() = default;

  /// On the heads whose weights are here. x [batch, seq, hidden], normed -> [batch, seq, hidden]: their part of the sum.
  virtual at::Tensor operator()(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& caches) const = 0;

  /// The rest is for schedules that run it with shards of other ranks; heads are then those of all ranks.
  struct Heads {
    int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;  // window 0 = unlimited
    kernels::ScoreRule rule{};
  };
  virtual Heads of_all_ranks() const = 0;
  virtual ShardOfWeights projections() const = 0;
  virtual Parameter& output() const = 0;  // [hidden, own heads * head_dim]
  /// Shapes of `owner`'s shards of projections(), of `ranks`; empty where all are alike.
  virtual std::vector<tensor::Shape> shapes(int /*owner*/, int /*ranks*/) const { return {}; }

  /// The shards that one visit sees: of one rank, or of the neighbours that share a kv head.
  struct Visit {
    int first = 0;  // rank of the first shard
    std::vector<ShardOfWeights> shards;
    int64_t heads = 0, kv_heads = 0;
  };
  /// x [batch, own tokens, hidden] -> q [batch, chunks, chunk length, visit's heads, head_dim], k and v alike with its kv heads.
  /// Differentiable, and good for backward when `sequences` are gone.
  using Projection = std::function<std::array<at::Tensor, 3>(const at::Tensor& x, const Visit& visit)>;
  virtual Projection projection(Sequences& sequences, at::ScalarType dtype, int ranks) const = 0;

  /// Decoding: what this rank's shards make of the new tokens of some texts, x [batch, tokens, hidden], behind those in `caches`; `gather`
  /// puts channels [batch, tokens, own channels] of all ranks side by side. -> q, k, v [batch, tokens, heads, head_dim] of all heads.
  using Gather = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& own)>;
  virtual std::array<at::Tensor, 3> project_new(const at::Tensor& x, Sequences& sequences, const Caches<AttentionCache>& caches, int rank,
                                                int ranks, const Gather& gather) const = 0;
};

}  // namespace ingot::layers
