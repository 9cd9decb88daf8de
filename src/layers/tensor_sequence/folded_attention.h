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

#include <array>
#include <functional>
#include <vector>

#include "layers/attention.h"
#include "layers/sequences.h"
#include "layers/tensor_sequence/axis.h"
#include "layers/tensor_sequence/folded_layer.h"

namespace ingot::layers {

struct FoldedAttention {
  int64_t heads = 0, kv_heads = 0, head_dim = 0, window = 0;  // heads of all ranks; window 0 = unlimited
  double scale = 1;
  std::vector<Parameter*> weights;  // of the projections: this rank's parts
  Parameter* out = nullptr;         // [hidden, own heads * head_dim]
  KeyValueCache* cache = nullptr;   // inference: takes the keys and values of this rank's tokens, of all heads
  /// Shapes of another rank's parts of `weights` where they differ from the own ones.
  std::function<std::vector<tensor::Shape>(int owner)> shapes;

  /// The parts that a visit sees: of one rank, or of the neighbours that share a kv head. x [batch, own tokens, hidden] -> q
  /// [batch, chunks, chunk length, visit's heads, head_dim], k and v alike with its kv heads. Differentiable.
  struct Visit {
    int first = 0;                     // rank of the first part
    std::vector<PartOfWeights> parts;  // of `weights`
    int64_t heads = 0, kv_heads = 0;
  };
  std::function<std::array<at::Tensor, 3>(const at::Tensor& x, const Visit& visit)> project;
};

/// Throws ConfigError when kv heads are neither a multiple nor a divisor of the ranks, or heads no multiple of them.
void check_folded_heads(int64_t heads, int64_t kv_heads, int64_t head_dim, int ranks);

/// x [batch, own tokens, hidden] -> [batch, own tokens, hidden] in the dtype of the weights. The axis of `sequences` says which tokens
/// each rank has.
at::Tensor folded_attention(const at::Tensor& x, const FoldedAttention& layer, const Sequences& sequences, const TensorSequenceAxis& axis);

}  // namespace ingot::layers
