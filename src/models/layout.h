// What of a model a rank holds, and with whom it computes. Plain values; the groups that they point to outlive them.
#pragma once

#include <vector>

#include "layers/sequence_axis.h"
#include "layers/tensor_axis.h"
#include "layers/tensor_sequence/axis.h"

namespace ingot::models {

/// Nothing = all of the model, alone.
struct Layout {
  layers::TensorAxis tensor;
  layers::SequenceAxis sequence;  // with a tensor_sequence axis: how that one cuts the tokens
  layers::TensorSequenceAxis tensor_sequence;
  struct Experts {
    int rank = 0, size = 1;        // which of the equal shares of the experts
    int slice = 0, slices = 1;     // which part of each one's inner width
    comm::Group* group = nullptr;  // layers/experts.h
    bool is_on() const { return size * slices > 1; }
  } experts;
  /// Pieces of the depth: piece g lies on stage g % size as its chunk g / size. The first has the embedding, the last the final
  /// norm and the head.
  struct Stage {
    int rank = 0, size = 1;
    std::vector<tensor::Range> pieces;  // layers of each; empty = one piece with all
    bool is_on() const { return size > 1; }
    bool is_first(int chunk) const { return rank == 0 && chunk == 0; }
    bool is_last(int chunk) const { return pieces.empty() || static_cast<size_t>(chunk * size + rank) + 1 == pieces.size(); }
    int chunks() const { return pieces.empty() ? 1 : static_cast<int>(pieces.size()) / size; }
    bool has_embedding() const { return rank == 0; }
    bool has_head() const { return rank == size - 1; }
    bool holds(int64_t layer) const {
      if (pieces.empty()) return true;
      for (size_t g = static_cast<size_t>(rank); g < pieces.size(); g += static_cast<size_t>(size))
        if (layer >= pieces[g].begin && layer < pieces[g].end) return true;
      return false;
    }
  } stage;

  /// Of n rows, columns or heads of a matrix that is cut, by whichever axis.
  tensor::Range weight_share(int64_t n) const { return tensor_sequence.is_on() ? tensor_sequence.share(n) : tensor.share(n); }
  bool cuts_weights() const { return tensor.is_on() || tensor_sequence.is_on(); }
};

}  // namespace ingot::models
