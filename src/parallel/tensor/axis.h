// Tensor parallelism: the ranks of a group hold slices of each matrix and compute on the same tokens. A layer is entered with
// what all of them need, and left with partial sums that are added up. Between layers either every rank has all tokens (then
// norms and residuals are repeated), or each has an equal slice of them (Megatron's sequence parallelism): messages cost the
// same, activations outside the layers 1/p of the memory.
//
// Bytes a rank sends per microbatch and (enter, leave) pair, forward and backward together, for tokens t, hidden h, e bytes an
// element: 4 (p-1)/p t h e in both forms; as all_reduces, or as all_gathers and reduce_scatters.
#pragma once

#include "comm/group.h"
#include "device/aten.h"
#include "tensor/part.h"

namespace ingot::parallel {

struct TensorAxis {
  int rank = 0, size = 1;
  bool shards_tokens = false;    // between layers; then what is between them has shape [1, tokens / size, …]
  comm::Group* group = nullptr;  // null while a model is only described, or for size 1

  /// This rank's share of n rows, columns or heads.
  tensor::Range share(int64_t n) const { return tensor::share_of(n, rank, size); }
  bool is_on() const { return size > 1; }

  /// x as it is between layers -> [batch, seq, hidden] with all tokens. The gradient is summed over the ranks.
  at::Tensor enter(const at::Tensor& x, int64_t batch, int64_t seq) const;
  /// This rank's part of a sum, [batch, seq, hidden] -> the sum, as it is between layers.
  at::Tensor leave(const at::Tensor& partial) const;
};

}  // namespace ingot::parallel
