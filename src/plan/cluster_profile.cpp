#include "plan/cluster_profile.h"

#include <algorithm>

#include "base/error.h"
#include "plan/rates.h"

namespace ingot::plan {
namespace {

double d(int64_t x) { return static_cast<double>(x); }

void add_gemms(const schedule::Cluster& cluster, const schedule::ComputeRates& rates, MachineProfile& profile) {
  const std::vector<int64_t> rows = {64, 256, 1024, 4096, 16384, 65536}, sides = {128, 512, 2048, 8192, 32768, 131072};
  const auto add = [&](const char* pass, int64_t m, int64_t n, int64_t k) {
    const schedule::Gemm gemm{m, n, k};
    profile.gemm.push_back(
        {rates.dtype, "plain", pass, m, n, k, gemm.flops() / schedule::compute_duration(gemm, cluster, rates, /*is_launched=*/true)});
  };
  for (const int64_t m : rows)
    for (const int64_t in : sides)
      for (const int64_t out : sides) {
        add("forward", m, out, in);
        add("grad_input", m, in, out);
        add("grad_weight", out, in, m);
      }
}

void add_attention(const schedule::Cluster& cluster, const schedule::ComputeRates& rates, MachineProfile& profile) {
  constexpr int64_t kHeads = 8;
  for (int64_t seq = 256; seq <= 262144; seq *= 4)
    for (const int64_t head_dim : {64, 128, 256}) {
      const auto seconds = [&](bool backward) {
        const schedule::Attention work{d(seq) * (d(seq) + 1) / 2, kHeads, head_dim, 1, seq, seq, backward};
        return schedule::compute_duration(work, cluster, rates);
      };
      profile.attention.push_back({rates.dtype, 1, seq, kHeads, kHeads, head_dim, seconds(false), seconds(true)});
    }
}

// Newton-Schulz is GEMMs, in the compute dtype; those of symmetric matrices count whole, since at what rate half of them runs is not known.
void add_optimizer(const schedule::Cluster& cluster, const schedule::ComputeRates& rates, MachineProfile& profile) {
  for (int64_t rows = 256; rows <= 32768; rows *= 4)
    for (int64_t cols = rows; cols <= 32768; cols *= 4) {
      const schedule::Gemm typical{rows, cols, rows};
      const double rate = typical.flops() / schedule::compute_duration(typical, cluster, rates);
      profile.kernels.push_back({"muon", rates.dtype, rows, cols, 1, kernel_work("muon", optim::Iterates::bf16, rows, cols) / rate, 0});
    }
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

schedule::Kind kind_of(const std::string& operation) {
  using schedule::Kind;
  for (const auto kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::broadcast, Kind::reduce, Kind::all_to_all})
    if (schedule::name_of(kind) == operation) return kind;
  return Kind::send;
}

}  // namespace

schedule::Cluster cluster_of(const MachineProfile& profile, const std::string& dtype, int64_t devices, int64_t memory_bytes) {
  constexpr double kLargeGemm = 1e8, kLongRow = 512;  // FLOPs; tokens
  schedule::Cluster cluster;
  cluster.name = profile.host;
  cluster.devices_per_node = devices;
  cluster.memory_bytes = d(memory_bytes);
  cluster.cores_communicate = profile.device == "cpu";
  schedule::ComputeRates rates{.dtype = dtype};
  std::vector<double> gemms, attention, backward, moves;
  for (const auto& e : profile.gemm)
    if (e.dtype == dtype && e.kind == "plain" && 2 * d(e.m) * d(e.n) * d(e.k) >= kLargeGemm) gemms.push_back(e.flops_per_s);
  for (const auto& e : profile.attention) {
    if (e.dtype != dtype || e.window > 0 || d(e.seq) < kLongRow) continue;
    const double flops = 4 * d(e.seq) * (d(e.seq) + 1) / 2 * d(e.batch * e.heads * e.head_dim);
    attention.push_back(flops / e.forward_s);
    backward.push_back(2.5 * flops / e.backward_s);
  }
  for (const auto& e : profile.memory)
    if (e.operation == "triad") moves.push_back(e.bytes_per_s);
  rates.gemm_flops_per_s = rates.state_flops_per_s = gemms.empty() ? profile.peak_gemm(dtype) : median(gemms);
  if (rates.gemm_flops_per_s == 0) throw base::ProfileError("the profile of {} has no GEMMs of {}", profile.host, dtype);
  rates.attention_flops_per_s = attention.empty() ? rates.gemm_flops_per_s : median(attention);
  rates.attention_backward_flops_per_s = backward.empty() ? rates.gemm_flops_per_s : median(backward);
  cluster.memory_bytes_per_s = moves.empty() ? 1e10 : median(moves);
  cluster.node.bytes_per_s = cluster.memory_bytes_per_s;
  cluster.compute = {rates};
  if (devices == 1) return cluster;
  for (const auto& e : profile.collectives)
    if (e.dtype == "fp32" && e.placement == "neighbours")
      cluster.measured.push_back({kind_of(e.operation), static_cast<int>(e.ranks), e.bytes, e.seconds});
  if (cluster.measured.empty())
    throw base::ProfileError("the profile of {} has no collectives of several ranks; measure them with ingot bench all", profile.host);
  return cluster;
}

device::Target target_of(const schedule::Cluster& cluster) {
  return cluster.has_fused_kernels ? device::Target::fused_gpu : device::Target::gpu;
}

MachineProfile profile_of(const schedule::Cluster& cluster, const std::string& dtype) {
  MachineProfile profile;
  profile.host = profile.cpu = cluster.name;
  profile.device = "cuda:0";
  profile.cores = profile.threads = 1;
  profile.program = profile.torch = "-";
  profile.date = "modelled";
  profile.operation_s = 3 * cluster.kernel_launch_s;
  const auto& rates = cluster.rates(dtype);
  add_gemms(cluster, rates, profile);
  add_attention(cluster, rates, profile);
  add_optimizer(cluster, rates, profile);
  for (int64_t bytes = int64_t{1} << 12; bytes <= int64_t{1} << 32; bytes *= 16) {
    const double moved = 3 * d(bytes);
    profile.memory.push_back({"triad", bytes, moved / (cluster.kernel_launch_s + moved / cluster.memory_bytes_per_s)});
  }
  return profile;
}

}  // namespace ingot::plan
