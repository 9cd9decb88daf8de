// The communication groups of a mesh, made when first asked for. All ranks must ask for the same axes in the same order.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "comm/world.h"
#include "mesh/mesh.h"

namespace ingot::mesh {

class Groups {
 public:
  /// The world must outlive it.
  Groups(comm::World& world, const ParallelConfig& config);
  const Mesh& mesh() const { return mesh_; }
  comm::World& world() { return world_; }
  /// Ranks that differ from this one in these axes alone; a group of one where they have size 1.
  comm::Group& along(const std::vector<Axis>& axes);
  /// The same without the stages between the pipeline's first and last (Mesh::members_at_ends). Only these two may ask.
  comm::Group& along_ends(const std::vector<Axis>& axes);

 private:
  comm::World& world_;
  Mesh mesh_;
  std::map<std::string, std::unique_ptr<comm::Group>> groups_;  // by name
};

}  // namespace ingot::mesh
