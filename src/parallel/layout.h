// What of a model a rank holds, and with whom it computes. Plain values; the groups that they point to outlive them.
#pragma once

#include <vector>

#include "mesh/groups.h"
#include "parallel/context/axis.h"
#include "parallel/expert/axis.h"
#include "parallel/tensor/axis.h"
#include "parallel/tensor_sequence/axis.h"
#include "tensor/part.h"

namespace ingot::parallel {

/// Nothing = all of the model, alone.
struct Layout {
  TensorAxis tensor;
  ContextAxis sequence;  // with a tensor_sequence axis: how that one cuts the tokens
  TensorSequenceAxis tensor_sequence;
  ExpertAxis experts;
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
};

/// Of a mesh's rank, but for the pieces of the depth, which depend on the model (train/parallel_model.h). Without groups (to describe it)
/// from the mesh alone. Throws ConfigError for axes that exclude each other.
Layout layout_of(const mesh::Mesh& mesh, const mesh::ParallelConfig& config, mesh::Groups* groups = nullptr);

}  // namespace ingot::parallel
