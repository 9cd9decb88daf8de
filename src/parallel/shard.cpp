#include "parallel/shard.h"

namespace ingot::parallel {

std::vector<Shard> whole_shards(const layers::ParameterList& parameters) {
  std::vector<Shard> shards;
  for (const auto& p : parameters.all()) {
    if (!p->is_trained()) continue;
    shards.push_back({p.get(), 0, p->local_elements(), p->value.detach().view(-1), {}, true});
  }
  return shards;
}

at::Tensor view_of(const tensor::Region& region, const at::Tensor& flat) {
  return flat.as_strided(region.box.extent, region.strides, flat.storage_offset() + region.offset);
}

}  // namespace ingot::parallel
