// Which elements of a parameter a rank runs the optimizer for. Without ZeRO that is all it holds, on every replica alike; with
// ZeRO each rank of a group owns a slice.
#pragma once

#include <ATen/ATen.h>

#include <vector>

#include "comm/group.h"
#include "layers/parameter.h"
#include "tensor/part.h"

namespace ingot::parallel {

struct Shard {
  layers::Parameter* parameter = nullptr;
  int64_t begin = 0, end = 0;  // of what this rank holds of the parameter, row-major
  at::Tensor value;            // [end - begin], in the compute dtype
  at::Tensor gradient;         // [end - begin]; undefined: a slice of parameter->grad
  bool is_primary = true;      // of all ranks that own the same elements, this one counts and saves them

  int64_t size() const { return end - begin; }
  at::Tensor gradient_slice() const { return gradient.defined() ? gradient : parameter->grad.view(-1).narrow(0, begin, size()); }
  std::vector<tensor::Region> regions() const { return tensor::regions_of(parameter->shape, parameter->part, begin, end); }
};

/// All that this rank holds of every trained parameter.
std::vector<Shard> whole_shards(const layers::ParameterList& parameters);

/// The elements of a region, as a view of the slice `flat` that it was made for.
at::Tensor view_of(const tensor::Region& region, const at::Tensor& flat);

}  // namespace ingot::parallel
