#include "schedule/cluster.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/text.h"

namespace ingot::schedule {
namespace {

double saturation(double size, double half) { return half == 0 ? 1 : size / (size + half); }

// How the members of a group lie on nodes.
struct Spread {
  double size, nodes, members;  // members: of one node
};

Spread spread_of(const Group& group, const Cluster& cluster) {
  // Strides within a node's devices leave none out between the first and the last.
  const int64_t node = cluster.devices_per_node, first = group.rank(0) / node, last = group.rank(group.size - 1) / node;
  const auto size = static_cast<double>(group.size), count = group.stride < node ? static_cast<double>(last - first + 1) : size;
  return {size, count, size / count};
}

// What a device of a node takes in at once from `members` of it, itself included.
double node_rate(const Cluster& cluster, double members) {
  return cluster.node.bytes_per_s * (cluster.node.shape == Links::Shape::mesh ? std::max(1.0, members - 1) : 1.0);
}

// `n` bytes of which every rank gets all that it lacks (or the reverse), as rings do it.
double through_links(double n, const Spread& s, const Cluster& cluster) {
  const double inside = s.members > 1 ? n * (s.size - 1) / s.size / node_rate(cluster, s.members) : 0;
  const double outside = s.nodes > 1 ? n * (s.nodes - 1) / s.nodes / (s.members * cluster.network.bytes_per_s) : 0;
  return std::max(inside, outside);
}

// Everything goes to everyone, or to one, in pipelined rings.
double whole_through_links(double n, const Spread& s, const Cluster& cluster) {
  const double inside = s.members > 1 ? n / node_rate(cluster, s.members) : 0;
  const double outside = s.nodes > 1 ? n / (s.members * cluster.network.bytes_per_s) : 0;
  return std::max(inside, outside);
}

double exchanged(double n, const Spread& s, const Cluster& cluster) {
  const double inside = s.members > 1 ? n * (s.members - 1) / s.size / node_rate(cluster, s.members) : 0;
  const double outside = s.nodes > 1 ? n * (s.size - s.members) / s.size / cluster.network.bytes_per_s : 0;
  return std::max(inside, outside);
}

double ring_latency(const Spread& s, const Cluster& cluster) {
  const double steps_inside = cluster.node.shape == Links::Shape::mesh ? (s.members > 1 ? 1 : 0) : s.nodes * (s.members - 1);
  return steps_inside * cluster.node.latency_s + (s.nodes > 1 ? s.nodes - 1 : 0) * cluster.network.latency_s;
}

Duration point_to_point(const Communication& m, const Cluster& cluster) {
  const bool is_near = m.group.first / cluster.devices_per_node == m.peer / cluster.devices_per_node;
  const auto& links = is_near ? cluster.node : cluster.network;
  return {cluster.message_launch_s + static_cast<double>(m.bytes) / links.bytes_per_s, links.latency_s};
}

// Between the sizes that were measured on a line in their logarithms; smaller ones take as long as the smallest, larger ones in proportion.
// Of the group sizes the nearest one.
std::optional<double> measured_duration(const Communication& m, const Cluster& cluster) {
  const bool is_pair = m.kind == Kind::send || m.kind == Kind::receive;
  const auto kind = is_pair ? Kind::send : m.kind;
  const int ranks = is_pair ? 2 : m.group.size;
  if (ranks < 2) return std::nullopt;
  const auto distance = [&](const MeasuredCommunication& e) { return std::abs(std::log(static_cast<double>(e.ranks) / ranks)); };
  const MeasuredCommunication *nearest = nullptr, *below = nullptr, *above = nullptr;
  for (const auto& e : cluster.measured)
    if (e.kind == kind && (!nearest || distance(e) < distance(*nearest))) nearest = &e;
  if (!nearest) return std::nullopt;
  for (const auto& e : cluster.measured) {
    if (e.kind != kind || e.ranks != nearest->ranks) continue;
    if (e.bytes <= m.bytes && (!below || e.bytes > below->bytes)) below = &e;
    if (e.bytes >= m.bytes && (!above || e.bytes < above->bytes)) above = &e;
  }
  if (!below) return above->seconds;
  if (!above) return below->seconds * static_cast<double>(m.bytes) / static_cast<double>(below->bytes);
  if (above->bytes == below->bytes) return below->seconds;
  const double share = std::log(static_cast<double>(m.bytes) / static_cast<double>(below->bytes)) /
                       std::log(static_cast<double>(above->bytes) / static_cast<double>(below->bytes));
  return below->seconds * std::pow(above->seconds / below->seconds, share);
}

}  // namespace

const ComputeRates& Cluster::rates(const std::string& dtype) const {
  std::vector<std::string> known;
  for (const auto& entry : compute) {
    if (entry.dtype == dtype) return entry;
    known.push_back(entry.dtype);
  }
  throw base::ProfileError("the cluster profile '{}' has no rates for {}; it has {}", name, dtype, base::join(known, ", "));
}

double compute_duration(const Work& work, const Cluster& cluster, const ComputeRates& rates, bool is_launched) {
  const double launch_s = is_launched ? 0 : cluster.kernel_launch_s;
  const auto moved = [&](int64_t bytes) { return static_cast<double>(bytes) / cluster.memory_bytes_per_s; };
  if (const auto* gemm = std::get_if<Gemm>(&work)) {
    const double share = saturation(static_cast<double>(gemm->m), rates.half_m) * saturation(static_cast<double>(gemm->n), rates.half_n) *
                         saturation(static_cast<double>(gemm->k), rates.half_k);
    return launch_s + gemm->flops() / (rates.gemm_flops_per_s * share);
  }
  if (const auto* attention = std::get_if<Attention>(&work)) {
    if (attention->pairs == 0) return 0;
    const double share = saturation(static_cast<double>(attention->queries), rates.half_queries) *
                         saturation(static_cast<double>(attention->keys), rates.half_keys);
    const double peak = attention->backward ? rates.attention_backward_flops_per_s : rates.attention_flops_per_s;
    return static_cast<double>(attention->calls) * launch_s + attention->flops() / (peak * share);
  }
  if (const auto* state = std::get_if<StateWork>(&work))
    return launch_s + std::max(state->flops / rates.state_flops_per_s, moved(state->bytes));
  const auto& move = std::get<Move>(work);
  return launch_s + moved(move.bytes);
}

Duration communication_duration(const Communication& m, const Cluster& cluster) {
  if (const auto seconds = measured_duration(m, cluster)) return *seconds;
  const auto n = static_cast<double>(m.bytes);
  if (m.kind == Kind::send || m.kind == Kind::receive) return point_to_point(m, cluster);
  if (m.group.size < 2) return 0;
  const auto s = spread_of(m.group, cluster);
  const double ring = ring_latency(s, cluster), launch = cluster.message_launch_s;
  switch (m.kind) {
    case Kind::all_reduce: return launch + 2 * (ring + through_links(n, s, cluster));
    case Kind::all_gather:
    case Kind::reduce_scatter: return launch + ring + through_links(n, s, cluster);
    case Kind::broadcast:
    case Kind::reduce: return launch + ring + whole_through_links(n, s, cluster);
    case Kind::all_to_all: return launch + (s.nodes > 1 ? cluster.network.latency_s : cluster.node.latency_s) + exchanged(n, s, cluster);
    case Kind::send:
    case Kind::receive: break;
  }
  return 0;
}

Duration duration_of(const Operation& operation, const Cluster& cluster, const ComputeRates& rates) {
  if (const auto* message = std::get_if<Communication>(&operation.work)) return communication_duration(*message, cluster);
  return compute_duration(operation.work, cluster, rates);
}

}  // namespace ingot::schedule
