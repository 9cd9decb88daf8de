// The layers of this folder as data (layers/workload.h): what each keeps for its backward pass, what it holds while the parts of the
// weights pass by, and the products with every part. Sizes follow the schedules of the other files step by step.
#pragma once

#include "layers/sequence_axis.h"
#include "layers/tensor_sequence/axis.h"
#include "layers/tensor_sequence/folded_attention.h"
#include "layers/workload.h"

namespace ingot::layers {

/// One rank's part of a layer's weights.
struct PartSize {
  int64_t elements = 0, bytes = 0;
};

/// What one visit's projections need beside x and the tokens' q, k and v.
struct ProjectionSize {
  int64_t halo_rows = 0;       // that q, k and v have in front of the tokens
  int64_t forward_bytes = 0;   // while they are made
  int64_t kept_bytes = 0;      // for their backward pass
  int64_t backward_bytes = 0;  // in it, beside gradients of q, k and v
};

/// How many parts of the weights attention visits one after the other; with fewer kv heads than ranks, neighbours' parts at once.
int64_t folded_visits(int64_t kv_heads, const TensorSequenceAxis& axis);

/// Attention of x [tokens, hidden] -> out [tokens, hidden], the output projection included, those of q, k and v not: describe them behind
/// it as inner operations. `layer`: its sizes are enough. `tokens`: which ones this rank has.
void describe_folded_attention(Workload& work, ActivationId x, ActivationId out, const FoldedAttention& layer, const PartSize& part,
                               const ProjectionSize& projections, const SequenceAxis& tokens, const TensorSequenceAxis& axis);

/// A gated MLP of x -> out, both [tokens, hidden], with `ffn` inner channels on all ranks together.
void describe_folded_mlp(Workload& work, ActivationId x, ActivationId out, int64_t ffn, bool biased, const TensorSequenceAxis& axis);

/// The rows of a table [vocab, width] of all ranks -> out [tokens, width].
void describe_folded_embedding(Workload& work, ActivationId out, int64_t vocab, const TensorSequenceAxis& axis);

/// The loss of `hidden`, and its gradients.
void describe_folded_head(Workload& work, ActivationId hidden, int64_t vocab, const TensorSequenceAxis& axis);

}  // namespace ingot::layers
