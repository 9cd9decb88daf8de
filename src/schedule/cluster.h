// What a cluster that is not available can do, as numbers with their sources: how fast its devices compute and how fast they talk. Read
// from JSON (configs/clusters/, docs/parallel-methods.md says what each member means); values, read by any thread.
//
// Rates are models: a GEMM reaches peak x share x m / (m + half_m) x n / (n + half_n) x k / (k + half_k), attention its own rate with
// the same saturation in queries and keys. Links are latency and bandwidth; messages of different streams do not slow each other.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "schedule/replay.h"

namespace ingot::schedule {

struct ComputeRates {
  std::string dtype;
  double gemm_flops_per_s = 0;  // at large sizes
  double half_m = 0, half_n = 0, half_k = 0;
  double attention_flops_per_s = 0, attention_backward_flops_per_s = 0;
  double half_queries = 0, half_keys = 0;
  double state_flops_per_s = 0;  // kernels of linear attention
};

struct Links {
  /// mesh: a link from each device to each other one of its node; bandwidth is that of one link. any: each device has its bandwidth to
  /// whichever others.
  enum class Shape : uint8_t { any, mesh };
  Shape shape = Shape::any;
  double bytes_per_s = 0;  // one direction
  double latency_s = 0;    // of one hop
};

/// One call in a group of so many ranks, with bytes as Communication has them. A send is one of a ring in which every rank sends and
/// receives.
struct MeasuredCommunication {
  Kind kind = Kind::send;
  int ranks = 2;
  int64_t bytes = 0;
  double seconds = 0;
};

struct Cluster {
  static constexpr int64_t kVersion = 1;

  std::string name;
  int64_t devices_per_node = 1, nodes = 1;
  double memory_bytes = 0, memory_bytes_per_s = 0;
  double kernel_launch_s = 0, message_launch_s = 0;
  Links node;
  Links network;  // of one device; without bandwidth when there is one node
  std::vector<ComputeRates> compute;
  std::vector<MeasuredCommunication>
      measured;  // of a machine at hand: count instead of its links, for kinds that are in it; not in the file
  /// "kernels": "fused", as ingot has them on a CPU (attention without its scores; norms, activations and updates in one pass), or "aten",
  /// what ingot runs on GPUs today.
  bool has_fused_kernels = true;
  bool cores_communicate = false;  // those that compute: then no message hides behind computation
  struct Source {
    std::string member, text;
  };
  std::vector<Source> sources;  // of every number

  int64_t devices() const { return devices_per_node * nodes; }
  /// Throws ProfileError when the cluster has no rates of it.
  const ComputeRates& rates(const std::string& dtype) const;

  /// Throws ProfileError naming `origin`, the member and what it should be.
  static Cluster from_json(const std::string& text, const std::string& origin);
};

/// Throws ProfileError or FileError.
Cluster read_cluster(const std::filesystem::path& path);

/// Seconds that an operation takes when all that it waits for is there.
Duration duration_of(const Operation& operation, const Cluster& cluster, const ComputeRates& rates);
/// What is part of a kernel that runs already needs no launch.
double compute_duration(const Work& work, const Cluster& cluster, const ComputeRates& rates, bool is_launched = false);
/// n bytes over p ranks: all_gather and reduce_scatter n (p-1)/p through each rank's links, all_reduce twice that, broadcast and reduce n,
/// in as many rings as there are links; over several nodes each node's share goes through the links of all its members, beside what goes on
/// within it. all_to_all: what a rank has for other nodes goes through its own link alone. Latency: a hop
/// per step of a ring, in which the links are busy; a message's does not keep the next one waiting.
Duration communication_duration(const Communication& message, const Cluster& cluster);

}  // namespace ingot::schedule
