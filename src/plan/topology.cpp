#include "plan/topology.h"

#include <algorithm>
#include <set>

#include "base/error.h"

namespace ingot::plan {
namespace {

using schedule::Kind;

double d(int64_t x) { return static_cast<double>(x); }

bool is_pair(Kind kind) { return kind == Kind::send || kind == Kind::receive; }

struct Reach {
  int64_t nodes = 1, leaves = 1, rails = 1;
};

Reach reach_of(const schedule::Communication& m, const schedule::Cluster& cluster, const Topology& topology) {
  std::set<int64_t> nodes, leaves, rails;
  const auto add = [&](int64_t rank) {
    const int64_t node = rank / cluster.devices_per_node;
    nodes.insert(node);
    leaves.insert(topology.nodes_per_leaf > 0 ? node / topology.nodes_per_leaf : 0);
    rails.insert(rank % cluster.devices_per_node);
  };
  if (is_pair(m.kind)) {
    add(m.group.first);
    add(m.peer);
  } else {
    for (int i = 0; i < m.group.size; ++i) add(m.group.rank(i));
  }
  return {static_cast<int64_t>(nodes.size()), static_cast<int64_t>(leaves.size()), static_cast<int64_t>(rails.size())};
}

}  // namespace

Topology::Shape topology_from_name(const std::string& name) {
  if (name == "flat") return Topology::Shape::flat;
  if (name == "fat_tree") return Topology::Shape::fat_tree;
  if (name == "rails") return Topology::Shape::rails;
  throw base::UsageError("there is no topology {}; there are flat, fat_tree and rails", name);
}

schedule::Duration communication_duration(const schedule::Communication& m, const schedule::Cluster& cluster, const Topology& topology) {
  auto duration = schedule::communication_duration(m, cluster);
  if (topology.shape == Topology::Shape::flat) return duration;
  const auto reach = reach_of(m, cluster, topology);
  if (reach.nodes < 2) return duration;
  const double size = is_pair(m.kind) ? 2 : m.group.size;
  // The share of a device's traffic that goes up from its leaf.
  double upward = 0;
  if (reach.leaves > 1) {
    const double on_leaf = size / d(reach.leaves);
    upward = is_pair(m.kind) ? 1 : m.kind == Kind::all_to_all ? 1 - on_leaf / size : 1 / on_leaf;
  }
  const double slowdown = std::max(1.0, topology.oversubscription * upward);
  const double hops = reach.leaves > 1 ? 2 * d(reach.leaves - 1) * topology.hop_s : 0;
  // What a message takes on links alone grows; launching it does not.
  const double links_s = std::max(0.0, duration.busy_s - cluster.message_launch_s);
  double busy_s = cluster.message_launch_s + links_s * slowdown, latency_s = duration.latency_s;
  (is_pair(m.kind) ? latency_s : busy_s) += hops;
  if (topology.shape == Topology::Shape::rails && reach.rails > 1 && (is_pair(m.kind) || m.kind == Kind::all_to_all)) {
    // To the device of its own node on the right rail first; both links are busy at once, the slower one decides.
    const double foreign = is_pair(m.kind) ? 1 : 1 - 1 / d(reach.rails);
    const double inside_s = foreign * d(m.bytes) / cluster.node.bytes_per_s;
    busy_s = std::max(busy_s, cluster.message_launch_s + inside_s);
    latency_s += cluster.node.latency_s;
  }
  return {busy_s, latency_s};
}

}  // namespace ingot::plan
