// Tensor and sequence parallelism folded on one axis (TSP, arXiv 2604.26294): each rank of a group holds a part of every weight and a
// part of the tokens, and no two parts meet but by travelling. Activations and model state are both 1/p of one rank's.
//
//   attention     the parts of the weights are broadcast one after the other; each rank projects its tokens with the part at hand, the
//                 keys and values of these heads are gathered, and its queries attend to them (folded_attention.h)
//   gated MLP     the parts go round in a ring while partial outputs add up (folded_layer.h)
//   vocabulary    the same ring, for the embedding and the loss (folded_vocabulary.h)
//
// Backward visits every part once more and computes again what the part was needed for; gradients go back to the part's owner, in
// fp32 (fp64), by reductions in attention and along with the weights in the ring.
//
// Elements that a rank receives per layer, for p ranks, batch b, s tokens in a sequence, widths q and w of all query and of all kv
// heads, h hidden, f ffn, weights a = h (2 q + 2 w) of attention and m = 3 h f of the MLP:
//   forward       (p-1)/p (a + m + 2 b s w)
//   backward      the same; (p-1)/p 2 b s w of gradients of keys and values, and (p-1)/p (a + m) of the weights'
#pragma once

#include <cstdint>

#include "comm/group.h"
#include "tensor/part.h"

namespace ingot::parallel {

struct TensorSequenceAxis {
  int rank = 0, size = 1;
  int64_t head_buckets = 1;      // into which the kv heads of a part are gathered one after the other: less memory, more messages
  comm::Group* group = nullptr;  // null while a model is only described, or for size 1

  bool is_on() const { return size > 1; }
  tensor::Range share(int64_t n) const { return tensor::share_of(n, rank, size); }
};

}  // namespace ingot::parallel
