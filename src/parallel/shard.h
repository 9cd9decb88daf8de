// Which elements of a parameter a rank runs the optimizer for. Without ZeRO that is all it holds, on every replica alike; with
// ZeRO each rank of a group owns a slice.
#pragma once

#include <functional>
#include <vector>

#include "comm/group.h"
#include "device/aten.h"
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

/// A slice of the part of a parameter that some rank holds, which that rank updates.
struct OwnedSlice {
  int owner = 0;
  const tensor::Part* part = nullptr;
  tensor::Range range{};  // of the part, row-major
};
/// All slices of a parameter; owners are counted among the ranks that own elements of it. Parts live as long as the function.
using OwnersOf = std::function<std::vector<OwnedSlice>(const layers::Parameter&)>;

/// All that this rank holds of every trained parameter, and of every frozen one.
std::vector<Shard> whole_shards(const layers::ParameterList& parameters);
std::vector<Shard> frozen_shards(const layers::ParameterList& parameters);

/// The elements of a region, as a view of the slice `flat` that it was made for.
at::Tensor view_of(const tensor::Region& region, const at::Tensor& flat);

}  // namespace ingot::parallel
