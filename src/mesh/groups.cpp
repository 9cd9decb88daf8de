#include "mesh/groups.h"

#include <fmt/format.h>

namespace ingot::mesh {

Groups::Groups(comm::World& world, const ParallelConfig& config) : world_(world), mesh_(config, world.rank(), world.size()) {}

comm::Group& Groups::along(const std::vector<Axis>& axes) {
  auto& group = groups_[axes];
  if (!group) {
    std::string name;
    for (const Axis axis : axes) name += (name.empty() ? "" : "+") + std::string(name_of(axis));
    group = world_.group(name, mesh_.members(axes));
  }
  return *group;
}

}  // namespace ingot::mesh
