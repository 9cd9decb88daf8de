// Does a checkpoint hold what a program wants to load? Compared by name, shape and dtype before a byte is read, so that a
// model is never filled in part. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "tensor/logical_tensor.h"

namespace ingot::checkpoint {

struct Pair {
  tensor::LogicalTensor wanted, present;
};

/// What does not fit, each list sorted by name. A tensor that differs in shape and dtype is in both lists.
struct Mismatch {
  std::vector<tensor::LogicalTensor> missing;     // wanted but not there
  std::vector<tensor::LogicalTensor> unexpected;  // there but not wanted
  std::vector<Pair> shapes, dtypes;

  bool none() const { return missing.empty() && unexpected.empty() && shapes.empty() && dtypes.empty(); }
  /// Every kind with its number and its first `limit` tensors, one line per kind; empty when all fits.
  std::string describe(size_t limit = 10) const;
};

Mismatch compare(const std::vector<tensor::LogicalTensor>& wanted, const std::vector<tensor::LogicalTensor>& present);

}  // namespace ingot::checkpoint
