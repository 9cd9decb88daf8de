// Messages over leaves and rails, by hand.
#include "plan/topology.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace ingot::plan {
namespace {

using schedule::Communication;
using schedule::Kind;

// 16 nodes of 4; 10 GB/s within a node, 1 GB/s from each device to others.
schedule::Cluster cluster() {
  schedule::Cluster c;
  c.devices_per_node = 4;
  c.nodes = 16;
  c.message_launch_s = 1e-3;
  c.node = {schedule::Links::Shape::any, 1e10, 0};
  c.network = {schedule::Links::Shape::any, 1e9, 0};
  return c;
}
Topology tree(double oversubscription, double hop_s = 0) { return {Topology::Shape::fat_tree, 4, oversubscription, hop_s}; }

double seconds(const Communication& m, const Topology& topology) {
  const auto duration = communication_duration(m, cluster(), topology);
  return duration.busy_s + duration.latency_s;
}
Communication ring(int ranks, int stride, int64_t bytes = 1'000'000'000) {
  return {.kind = Kind::all_gather, .group = {0, ranks, stride}, .bytes = bytes};
}

TEST(Topologies, without_bottlenecks_change_nothing) {
  const Communication within{.kind = Kind::all_reduce, .group = {0, 4, 1}, .bytes = 1000};
  const Communication all_to_all{.kind = Kind::all_to_all, .group = {0, 64, 1}, .bytes = 1'000'000};
  for (const auto& m : {within, ring(16, 4), all_to_all}) {
    EXPECT_DOUBLE_EQ(seconds(m, {}), seconds(m, tree(1)));
    EXPECT_DOUBLE_EQ(seconds(m, {}), schedule::communication_duration(m, cluster()).busy_s);
  }
  EXPECT_DOUBLE_EQ(seconds(within, {}), seconds(within, tree(8, 1)));
}

TEST(Topologies, rings_cross_a_leaf_once_however_many_members_it_has) {
  const double flat = seconds(ring(16, 4), {}) - 1e-3;
  EXPECT_NEAR(flat, 15.0 / 16, 1e-12);
  EXPECT_NEAR(seconds(ring(16, 4), tree(4)) - 1e-3, flat, 1e-12);  // 4 members on a leaf make up for 4 : 1
  EXPECT_NEAR(seconds(ring(16, 4), tree(8)) - 1e-3, 2 * flat, 1e-12);
  // One member on each leaf: all goes up.
  EXPECT_NEAR(seconds(ring(4, 16), tree(8)) - 1e-3, 8 * (seconds(ring(4, 16), {}) - 1e-3), 1e-12);
  EXPECT_NEAR(seconds(ring(16, 4), tree(1, 0.5)) - 1e-3, flat + 2 * 3 * 0.5, 1e-12);
}

TEST(Topologies, all_to_all_goes_up_with_all_that_leaves_the_leaf) {
  const Communication m{.kind = Kind::all_to_all, .group = {0, 16, 4}, .bytes = 1'000'000'000};
  const double flat = seconds(m, {}) - 1e-3;
  EXPECT_NEAR(seconds(m, tree(4)) - 1e-3, 3 * flat, 1e-12);  // three quarters of it, four to one
}

TEST(Topologies, between_rails_a_message_goes_through_its_node_first) {
  auto c = cluster();
  c.node.latency_s = 0.25;
  c.node.bytes_per_s = 5e8;  // slower than the network, so that it shows
  const Topology rails{Topology::Shape::rails, 0, 1, 0};
  const auto send = [&](int to) {
    const Communication m{.kind = Kind::send, .group = {0, 1, 1}, .bytes = 1'000'000'000, .peer = to};
    return communication_duration(m, c, rails);
  };
  EXPECT_NEAR(send(4).busy_s, 1e-3 + 1, 1e-12);  // the same rail
  EXPECT_EQ(send(4).latency_s, 0);
  EXPECT_NEAR(send(5).busy_s, 1e-3 + 2, 1e-12);
  EXPECT_NEAR(send(5).latency_s, 0.25, 1e-12);
  EXPECT_NEAR(send(1).busy_s, 1e-3 + 2, 1e-12);  // within the node
}

TEST(Topologies, have_names) {
  EXPECT_EQ(topology_from_name("rails"), Topology::Shape::rails);
  EXPECT_THROW(topology_from_name("torus"), base::UsageError);
}

}  // namespace
}  // namespace ingot::plan
