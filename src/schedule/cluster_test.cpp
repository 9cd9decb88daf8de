#include "schedule/cluster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "base/error.h"
#include "base/files.h"

namespace ingot::schedule {
namespace {

using ::testing::HasSubstr;

const std::vector<std::string> kShipped = {"configs/clusters/mi300x-8.json",    "configs/clusters/a100-64.json",
                                           "configs/clusters/h100-64.json",     "configs/clusters/h100-500w-64.json",
                                           "configs/clusters/mi300x-1024.json", "configs/clusters/h200-64.json"};

std::string shipped_text() { return base::read_file(kShipped[1]); }

std::string error_of(const std::string& text) {
  try {
    Cluster::from_json(text, "c.json");
  } catch (const base::ProfileError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

template <class Change>
std::string error_after(const Change& change) {
  auto json = nlohmann::json::parse(shipped_text());
  change(json);
  return error_of(json.dump());
}

TEST(ClusterFile, shipped_ones_are_read_and_every_number_has_a_source) {
  for (const auto& path : kShipped) {
    const auto cluster = read_cluster(path);
    EXPECT_FALSE(cluster.name.empty());
    EXPECT_EQ(cluster.sources.size(), cluster.nodes > 1 ? 19u : 17u) << path;
    for (const auto& source : cluster.sources) EXPECT_GT(source.text.size(), 5u) << source.member;
    EXPECT_GT(cluster.rates("bf16").gemm_flops_per_s, 1e14);
  }
  EXPECT_EQ(read_cluster(kShipped[0]).devices(), 8);
  EXPECT_EQ(read_cluster(kShipped[2]).devices(), 64);
}

TEST(ClusterFile, says_whose_kernels_its_devices_run) {
  auto json = nlohmann::json::parse(shipped_text());
  json["kernels"] = "aten";
  EXPECT_FALSE(Cluster::from_json(json.dump(), "c.json").has_fused_kernels);
  json.erase("kernels");
  EXPECT_TRUE(Cluster::from_json(json.dump(), "c.json").has_fused_kernels);
  EXPECT_THAT(error_after([](auto& j) { j["kernels"] = "fusd"; }), HasSubstr("kernels"));
}

TEST(ClusterFile, what_is_wrong_is_named) {
  EXPECT_THAT(error_of("{"), HasSubstr("c.json is not JSON"));
  EXPECT_THAT(error_of("[]"), HasSubstr("c.json is not an object"));
  EXPECT_THAT(error_after([](auto& j) { j["format"] = "ingot machine profile"; }), HasSubstr("is not a cluster profile"));
  EXPECT_THAT(error_after([](auto& j) { j["version"] = 2; }), HasSubstr("has version 2; this program reads version 1"));
  EXPECT_THAT(error_after([](auto& j) { j.erase("nodes"); }), HasSubstr("c.json lacks 'nodes'"));
  EXPECT_THAT(error_after([](auto& j) { j.erase("network"); }), HasSubstr("c.json lacks 'network'"));
  EXPECT_THAT(error_after([](auto& j) { j["memory_byte"] = 1; }), HasSubstr("unknown member 'memory_byte'; did you mean 'memory_bytes'?"));
  EXPECT_THAT(error_after([](auto& j) { j["memory_bytes"] = 8e10; }),
              HasSubstr(R"(c.json.memory_bytes must be {"value": a number, "source")"));
  EXPECT_THAT(error_after([](auto& j) { j["memory_bytes"].erase("source"); }), HasSubstr("c.json.memory_bytes must be"));
  EXPECT_THAT(error_after([](auto& j) { j["memory_bytes"]["source"] = ""; }), HasSubstr("c.json.memory_bytes's source must be a text"));
  EXPECT_THAT(error_after([](auto& j) { j["nodes"]["value"] = 2.5; }), HasSubstr("c.json.nodes's value must be a whole number"));
  EXPECT_THAT(error_after([](auto& j) { j["node"]["bytes_per_s"]["value"] = -1; }),
              HasSubstr("c.json.node.bytes_per_s's value must be a positive"));
  EXPECT_THAT(error_after([](auto& j) { j["node"]["shape"] = "torus"; }), HasSubstr("c.json.node.shape must be one of any, mesh"));
  EXPECT_THAT(error_after([](auto& j) { j["compute"] = nlohmann::json::array(); }), HasSubstr("c.json.compute must be a list of 1 to 64"));
  EXPECT_THAT(error_after([](auto& j) { j["compute"].push_back(j["compute"][0]); }), HasSubstr("c.json.compute has two entries for bf16"));
  EXPECT_THAT(error_after([](auto& j) { j["compute"][0]["dtype"] = "int8"; }), HasSubstr("c.json.compute[0].dtype must be one of"));
  try {
    read_cluster(kShipped[1]).rates("fp64");
    FAIL();
  } catch (const base::ProfileError& error) {
    EXPECT_THAT(error.what(), HasSubstr("has no rates for fp64; it has bf16"));
  }
}

// A fuzz target of its own kind: cut and flipped files are read or refused, never anything else.
TEST(ClusterFile, damaged_files_are_refused_or_read) {
  const auto whole = shipped_text();
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    auto text = whole.substr(0, i % 2 == 0 ? whole.size() : random() % whole.size());
    for (uint32_t flips = random() % 4; flips-- > 0 && !text.empty();) text[random() % text.size()] = static_cast<char>(random());
    try {
      Cluster::from_json(text, "c.json");
    } catch (const base::ProfileError&) {
    }
  }
}

// Nodes of 4; 100 bytes/s within, 10 between.
Cluster toy(Links::Shape shape = Links::Shape::any) {
  Cluster c;
  c.devices_per_node = 4;
  c.nodes = 4;
  c.node = {shape, 100, 0};
  c.network = {Links::Shape::any, 10, 0};
  return c;
}
double seconds(const Cluster& c, Kind kind, Group group, int64_t bytes, int peer = -1) {
  const auto duration = communication_duration({kind, group, bytes, 1, peer}, c);
  return duration.busy_s + duration.latency_s;
}

TEST(Links, collectives_take_what_must_pass_through_a_ranks_links) {
  const auto c = toy();
  const Group node{0, 4, 1};
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_gather, node, 4000), 30);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::reduce_scatter, node, 4000), 30);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_reduce, node, 4000), 60);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::broadcast, node, 4000), 40);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_to_all, node, 4000), 30);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_gather, {0, 1, 1}, 4000), 0);
}

TEST(Links, a_mesh_gives_a_small_group_few_links) {
  const auto c = toy(Links::Shape::mesh);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_gather, {0, 4, 1}, 4000), 10);  // 1000 over each of three links
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_gather, {0, 2, 1}, 4000), 20);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::send, {0}, 1000, 1), 10);
}

TEST(Links, nodes_share_what_crosses_among_their_members) {
  const auto c = toy();
  // 8 ranks on 2 nodes: half of 8000 enters each node through 4 links of 10; within, 7000 through 100.
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_gather, {0, 8, 1}, 8000), 100);
  // One rank of each of 2 nodes.
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_gather, {0, 2, 4}, 8000), 400);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_to_all, {0, 8, 1}, 8000), 400);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::send, {3}, 1000, 4), 100);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::send, {2}, 1000, 3), 10);
}

TEST(Links, a_ring_has_a_hop_of_latency_for_each_step) {
  auto c = toy();
  c.node.latency_s = 1;
  c.network.latency_s = 5;
  c.message_launch_s = 100;
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_gather, {0, 4, 1}, 0), 103);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_reduce, {0, 4, 1}, 0), 106);
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_gather, {0, 8, 1}, 0), 100 + 6 + 5);
  c.node.shape = Links::Shape::mesh;
  EXPECT_DOUBLE_EQ(seconds(c, Kind::all_gather, {0, 4, 1}, 0), 101);
}

TEST(Rates, gemms_reach_half_their_rate_at_the_half_sizes) {
  auto c = toy();
  c.memory_bytes_per_s = 10;
  const ComputeRates rates{.gemm_flops_per_s = 100,
                           .half_m = 8,
                           .half_k = 4,
                           .attention_flops_per_s = 50,
                           .attention_backward_flops_per_s = 25,
                           .state_flops_per_s = 20};
  EXPECT_DOUBLE_EQ(compute_duration(Gemm{8, 10, 4}, c, rates), 2 * 8 * 10 * 4 / 25.0);
  EXPECT_DOUBLE_EQ(compute_duration(Attention{.pairs = 10, .heads = 2, .head_dim = 5}, c, rates), 400 / 50.0);
  EXPECT_DOUBLE_EQ(compute_duration(Attention{.pairs = 10, .heads = 2, .head_dim = 5, .backward = true}, c, rates), 1000 / 25.0);
  EXPECT_DOUBLE_EQ(compute_duration(StateWork{200, 50}, c, rates), 10);
  EXPECT_DOUBLE_EQ(compute_duration(StateWork{20, 50}, c, rates), 5);
  EXPECT_DOUBLE_EQ(compute_duration(Move{100}, c, rates), 10);
}

}  // namespace
}  // namespace ingot::schedule
