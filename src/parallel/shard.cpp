#include "parallel/shard.h"

namespace ingot::parallel {

namespace {

template <typename Predicate>
std::vector<Shard> shards_of(const layers::ParameterList& parameters, const Predicate& is_wanted) {
  std::vector<Shard> shards;
  for (const auto& p : parameters.all())
    if (is_wanted(*p)) shards.push_back({p.get(), 0, p->local_elements(), p->value.detach().view(-1), {}, true});
  return shards;
}

}  // namespace

std::vector<Shard> whole_shards(const layers::ParameterList& parameters) {
  return shards_of(parameters, [](const layers::Parameter& p) { return p.is_trained(); });
}

std::vector<Shard> frozen_shards(const layers::ParameterList& parameters) {
  return shards_of(parameters, [](const layers::Parameter& p) { return p.is_frozen && p.kind != layers::Parameter::Kind::buffer; });
}

at::Tensor view_of(const tensor::Region& region, const at::Tensor& flat) {
  return flat.as_strided(region.box.extent, region.strides, flat.storage_offset() + region.offset);
}

}  // namespace ingot::parallel
