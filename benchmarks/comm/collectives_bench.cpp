// Times the collectives of every fabric of one machine beside c10d's ProcessGroupGloo, in processes of one thread each:
//   cmake --build build/release --target collectives_bench && build/release/benchmarks/comm/collectives_bench [ranks]
// Medians over repeated calls on rank 0; bus bandwidth by nccl-tests' conventions. Sides alternate size by size.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "comm/test_ranks.h"

using namespace ingot::comm;

namespace {

constexpr int64_t kSizes[] = {4, 4096, 65536, 1 << 20, 8 << 20, 64 << 20};  // bytes of the whole

// Median seconds of a call.
double time_of(Group& pace, const std::function<void()>& call) {
  std::vector<double> times;
  call();
  const auto begin = Clock::now();
  bool more = true;
  while (more) {
    pace.barrier();
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double>(Clock::now() - start).count());
    auto go_on = at::full({1}, static_cast<int64_t>(times.size() < 5 || Clock::now() - begin < std::chrono::milliseconds(300)), at::kLong);
    pace.broadcast(go_on, 0);
    more = go_on.item<int64_t>() != 0 && times.size() < 20000;
  }
  std::nth_element(times.begin(), times.begin() + static_cast<ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

struct Peer {  // c10d's own collectives
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group;
  void operator()(Kind kind, at::Tensor whole, at::Tensor part) {
    std::vector<at::Tensor> one = {whole};
    switch (kind) {
      case Kind::all_reduce: group->allreduce(one)->wait(); break;
      case Kind::reduce_scatter: group->_reduce_scatter_base(part, whole)->wait(); break;
      case Kind::all_gather: group->_allgather_base(whole, part)->wait(); break;
      case Kind::broadcast: group->broadcast(one)->wait(); break;
      default: break;
    }
  }
};

void ours(Group& group, Kind kind, const at::Tensor& whole, const at::Tensor& part) {
  switch (kind) {
    case Kind::all_reduce: return group.all_reduce(whole);
    case Kind::reduce_scatter: return group.reduce_scatter(part, whole);
    case Kind::all_gather: return group.all_gather(whole, part);
    case Kind::broadcast: return group.broadcast(whole, 0);
    default: return;
  }
}

void measure(World& world, bool with_peer, int peer_port, const char* name) {
  auto& group = world.everyone();
  Peer peer;
  if (with_peer) {
    c10d::TCPStoreOptions options;
    options.port = static_cast<uint16_t>(peer_port);
    options.isServer = world.rank() == 0;
    options.waitWorkers = false;
    auto settings = c10d::ProcessGroupGloo::Options::create();
    settings->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    peer.group = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options), world.rank(),
                                                             world.size(), settings);
  }
  const double p = world.size();
  for (const auto kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::broadcast}) {
    for (const int64_t bytes : kSizes) {
      const int64_t part_elements = std::max<int64_t>(1, bytes / 4 / world.size());
      const auto whole = at::ones({part_elements * world.size()}, at::kFloat), part = at::ones({part_elements}, at::kFloat);
      const double own = time_of(group, [&] { ours(group, kind, whole, part); });
      const double other = with_peer ? time_of(group, [&] { peer(kind, whole, part); }) : 0;
      if (world.rank() != 0) continue;
      const double factor = kind == Kind::all_reduce ? 2 * (p - 1) / p : kind == Kind::broadcast ? 1 : (p - 1) / p;
      const auto rate = [&](double s) {
        return bytes >= 65536 && s > 0 ? fmt::format("{:.2f}", factor * static_cast<double>(bytes) / s * 1e-9) : std::string();
      };
      fmt::print("| {} | {} | {} | {:.1f} | {} | {} | {} | {} |\n", name, name_of(kind), bytes, own * 1e6, rate(own),
                 with_peer ? fmt::format("{:.1f}", other * 1e6) : "", rate(other), with_peer ? fmt::format("**{:.1f}**", other / own) : "");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  fmt::print(
      "{} ranks\n\n| fabric | collective | bytes | us | GB/s | c10d Gloo us | GB/s | times as fast |\n|---|---|---|---|---|---|---|---|\n",
      ranks);
  std::fflush(stdout);
  for (const auto fabric : {Fabrics::shared_memory, Fabrics::gloo}) {
    const int port = free_port();
    for (const auto& outcome : outcomes_on(fabric, ranks, [&](World& world) {
           measure(world, true, port, fabric == Fabrics::gloo ? "pairwise over Gloo" : "shared memory");
         }))
      if (!outcome.empty()) fmt::print(stderr, "{}\n", outcome);
  }
  for (const auto& outcome : outcomes_on(Fabrics::threads, ranks, [&](World& world) { measure(world, false, 0, "threads"); }))
    if (!outcome.empty()) fmt::print(stderr, "{}\n", outcome);
}
