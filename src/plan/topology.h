// What the switches between nodes do to messages: schedule/cluster.h knows the links of a device, and lets whoever talks to whom have
// them; a real network has leaf switches with fewer links up than down, or no way from one rail to another.
#pragma once

#include <string>

#include "schedule/cluster.h"

namespace ingot::plan {

struct Topology {
  /// flat: every device's link reaches every other one's at full rate. fat_tree: devices hang on leaf switches, which spines join.
  /// rails: device i of each node hangs on rail i alone; what must change rails does so within a node (ZAYA1, arXiv 2511.17127, II-B).
  enum class Shape { flat, fat_tree, rails };
  Shape shape = Shape::flat;
  int64_t nodes_per_leaf = 0;   // 0: one leaf reaches all
  double oversubscription = 1;  // of a leaf: bandwidth to its devices over bandwidth to the spines
  double hop_s = 0;             // of each switch beyond the first
};
/// "flat", "fat_tree", "rails". Throws UsageError.
Topology::Shape topology_from_name(const std::string& name);

/// Seconds of a message, all groups of its kind being at work at once. Rings cross a leaf's uplinks once for each group, all_to_all with
/// whatever leaves the leaf; between rails both go through the links within nodes first.
schedule::Duration communication_duration(const schedule::Communication& message, const schedule::Cluster& cluster,
                                          const Topology& topology);

}  // namespace ingot::plan
