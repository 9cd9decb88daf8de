#include "parallel/layout.h"

#include "base/error.h"

namespace ingot::parallel {

using mesh::Axis;

Layout layout_of(const mesh::Mesh& mesh, const mesh::ParallelConfig& config, mesh::Groups* groups) {
  const auto group_along = [&](const std::vector<Axis>& axes) { return groups ? &groups->along(axes) : nullptr; };
  Layout layout;
  layout.tensor = {.rank = mesh.position(Axis::tensor), .size = mesh.size(Axis::tensor), .shards_tokens = config.sequence_parallel};
  layout.sequence = {{.rank = mesh.position(Axis::context), .size = mesh.size(Axis::context), .zigzag = config.context_order == "zigzag"},
                     nullptr,
                     &attention_method(config.context_method),
                     &state_method(config.state_method)};
  if (const int size = mesh.size(Axis::tensor_sequence); size > 1) {
    if (layout.sequence.is_on())
      throw base::ConfigError("parallel.context = {} and parallel.tensor_sequence = {}: TSP cuts the tokens already; one of them must be 1",
                              layout.sequence.size, size);
    const int rank = mesh.position(Axis::tensor_sequence);
    auto* group = group_along({Axis::tensor_sequence});
    layout.tensor_sequence = {.rank = rank, .size = size, .head_buckets = config.head_buckets, .group = group};
    layout.sequence = {{.rank = rank, .size = size, .zigzag = layout.sequence.zigzag}, group, &kAllGather, layout.sequence.states};
  } else if (layout.sequence.is_on()) {
    layout.sequence.group = group_along({Axis::context});
  }
  layout.stage = {.rank = mesh.position(Axis::pipeline), .size = mesh.size(Axis::pipeline)};
  layout.experts = {.rank = mesh.position(Axis::expert),
                    .size = mesh.size(Axis::expert),
                    .slice = mesh.position(Axis::expert_tensor),
                    .slices = mesh.size(Axis::expert_tensor)};
  if (layout.tensor.is_on()) layout.tensor.group = group_along({Axis::tensor});
  if (layout.experts.is_on()) layout.experts.group = group_along({Axis::expert, Axis::expert_tensor});
  return layout;
}

}  // namespace ingot::parallel
