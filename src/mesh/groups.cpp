#include "mesh/groups.h"

#include <fmt/format.h>

namespace ingot::mesh {

Groups::Groups(comm::World& world, const ParallelConfig& config) : world_(world), mesh_(config, world.rank(), world.size()) {}

namespace {

std::string name_of(const std::vector<Axis>& axes) {
  std::string name;
  for (const Axis axis : axes) name += (name.empty() ? "" : "+") + std::string(mesh::name_of(axis));
  return name;
}

}  // namespace

comm::Group& Groups::along(const std::vector<Axis>& axes) {
  auto& group = groups_[name_of(axes)];
  if (!group) group = world_.group(name_of(axes), mesh_.members(axes));
  return *group;
}

comm::Group& Groups::along_ends(const std::vector<Axis>& axes) {
  const auto name = name_of(axes) + ", ends";
  auto& group = groups_[name];
  if (!group) group = world_.group(name, mesh_.members_at_ends(axes));
  return *group;
}

}  // namespace ingot::mesh
