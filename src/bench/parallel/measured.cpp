#include "bench/parallel/measured.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.h"
#include "bench/parallel/rank_layer.h"
#include "bench/stopwatch.h"
#include "device/device.h"
#include "kernels/cpu_memory.h"

namespace ingot::bench {
namespace {

using base::ConfigError;
using schedule::Layer;
using schedule::Layout;
using schedule::Pass;

// The largest of all ranks.
double largest(comm::World& world, double value) {
  const auto all = at::full({1}, value, at::kDouble);
  world.everyone().all_reduce(all, comm::Reduction::max);
  return all.item<double>();
}

bool are_threads(comm::World& world) { return world.description().find("thread") != std::string::npos; }

// What the ranks of a process have in tensors together, as one rank's share.
int64_t peak_bytes(comm::World& world, at::Device device) {
  if (!device.is_cpu()) return device::peak_memory_bytes(device);
  return static_cast<int64_t>(kernels::page_pool_use().peak_in_use_bytes) / (are_threads(world) ? world.size() : 1);
}

schedule::Traffic difference(const std::map<comm::Kind, comm::AxisTraffic>& after, const std::map<comm::Kind, comm::AxisTraffic>& before) {
  schedule::Traffic out;
  for (const auto& [kind, traffic] : after) {
    if (kind == comm::Kind::barrier) continue;
    const auto known = before.find(kind);
    const auto earlier = known == before.end() ? comm::AxisTraffic{} : known->second;
    if (traffic.calls == earlier.calls) continue;
    const bool is_message = kind == comm::Kind::send || kind == comm::Kind::receive;
    auto& sum = out[is_message ? "send_receive" : std::string(comm::name_of(kind))];
    sum.calls = std::max(sum.calls, traffic.calls - earlier.calls);
    sum.sent_bytes += traffic.sent_bytes - earlier.sent_bytes;
    sum.received_bytes += traffic.received_bytes - earlier.received_bytes;
  }
  return out;
}

schedule::Traffic largest(comm::World& world, const schedule::Traffic& own) {
  schedule::Traffic most;
  for (const auto& kind : schedule::traffic_kinds()) {
    const auto known = own.find(kind);
    const auto t = known == own.end() ? schedule::KindTraffic{} : known->second;
    const auto all = at::tensor({t.calls, t.sent_bytes, t.received_bytes}, at::kLong);
    world.everyone().all_reduce(all, comm::Reduction::max);
    const auto* numbers = all.const_data_ptr<int64_t>();
    if (numbers[0] > 0) most[kind] = {numbers[0], numbers[1], numbers[2]};
  }
  return most;
}

}  // namespace

schedule::Result measure_parallel(const Layout& layout, int repeats, comm::World& world, at::Device device) {
  schedule::check(layout);
  schedule::Result result{.method = layout.label(),
                          .layer = schedule::name_of(layout.layer),
                          .ranks = layout.ranks,
                          .seq = layout.sizes.seq,
                          .batch = layout.sizes.batch,
                          .pass = schedule::name_of(layout.pass)};
  auto& everyone = world.everyone();
  everyone.barrier();
  // The peak begins anew.
  if (!device.is_cpu()) device::reset_peak_memory(device);
  else if (world.rank() == 0 || !are_threads(world)) kernels::release_freed_memory();
  everyone.barrier();
  const at::AutoGradMode with_grad(layout.pass != Pass::forward);
  RankLayer layer(layout, world, device);
  std::vector<double> times, waits;
  for (int i = -1; i < repeats; ++i) {
    at::Tensor out;
    if (layout.pass == Pass::backward) out = layer.forward();
    everyone.barrier();
    const auto operations = world.counters().by_kind();
    const double waited_before = world.counters().waited_s();
    const double seconds = seconds_of(
        [&] {
          if (layout.pass != Pass::backward) out = layer.forward();
          if (layout.pass != Pass::forward) layer.backward(out);
        },
        device);
    const double waited = world.counters().waited_s() - waited_before;
    const auto made = difference(world.counters().by_kind(), operations);
    if (i < 0) {
      result.ops = largest(world, made);
    } else {
      times.push_back(largest(world, seconds));
      waits.push_back(largest(world, waited));
    }
  }
  result.time_ms = median(times) * 1e3;
  result.exposed_ms = median(waits) * 1e3;
  everyone.barrier();
  result.peak_bytes = static_cast<int64_t>(largest(world, static_cast<double>(peak_bytes(world, device))));
  return result;
}

schedule::SweepResult measure_sweep(const schedule::Sweep& sweep, const std::vector<Layer>& layers, int repeats, comm::World& world,
                                    at::Device device, const OnCase& on_case) {
  std::vector<Layout> cases;
  for (const auto layer : layers)
    for (const auto pass : sweep.passes)
      for (const int64_t seq : sweep.seqs)
        for (const auto method : sweep.methods)
          for (auto& layout : schedule::layouts_of(sweep, method, world.size(), seq)) {
            layout.layer = layer;
            layout.pass = pass;
            cases.push_back(layout);
          }
  schedule::SweepResult out;
  for (size_t i = 0; i < cases.size(); ++i) {
    // All ranks stop at the same case.
    const auto stop = at::full({1}, on_case(i, cases.size(), cases[i]) ? 0 : 1, at::kInt);
    world.everyone().all_reduce(stop, comm::Reduction::max);
    if (stop.item<int>() != 0) break;
    try {
      out.results.push_back(measure_parallel(cases[i], repeats, world, device));
    } catch (const ConfigError& refusal) {
      out.refusals.push_back(
          {cases[i].label() + " " + schedule::name_of(cases[i].layer), world.size(), cases[i].sizes.seq, refusal.what()});
    }
  }
  return out;
}

void add_crossovers(schedule::SweepResult& sweep) {
  using schedule::Quantity;
  std::map<std::tuple<std::string, int, std::string>, std::map<std::string, std::map<int64_t, const schedule::Result*>>> lines;
  for (const auto& r : sweep.results) lines[{r.layer, r.ranks, r.pass}][r.method][r.seq] = &r;
  const auto value_of = [](const schedule::Result& r, Quantity quantity) {
    if (quantity == Quantity::time) return r.time_ms;
    return static_cast<double>(quantity == Quantity::peak_bytes ? r.peak_bytes : schedule::received_bytes(r.ops));
  };
  for (const auto& [key, methods] : lines)
    for (const auto quantity : {Quantity::time, Quantity::received_bytes, Quantity::peak_bytes})
      for (const auto& [a, of_a] : methods)
        for (const auto& [b, of_b] : methods) {
          if (a == b) continue;
          // From the largest length down, as long as a needs less.
          int64_t from = 0;
          bool is_always = true;
          for (auto at = of_a.rbegin(); at != of_a.rend(); ++at) {
            if (!of_b.contains(at->first)) continue;
            if (value_of(*at->second, quantity) >= value_of(*of_b.at(at->first), quantity)) {
              is_always = false;
              break;
            }
            from = at->first;
          }
          if (from > 0 && !is_always)
            sweep.crossovers.push_back({a, b, std::get<0>(key), std::get<1>(key), std::get<2>(key), quantity, from});
        }
}

schedule::SweepResult sweep_from_json(const nlohmann::json& json) {
  schedule::SweepResult sweep;
  for (const auto& entry : json.at("results")) {
    auto& r = sweep.results.emplace_back();
    r.method = entry.at("method");
    r.layer = entry.at("layer");
    r.ranks = entry.at("ranks");
    r.seq = entry.at("seq");
    r.batch = entry.at("batch");
    r.pass = entry.at("pass");
    r.time_ms = entry.at("time_ms");
    r.exposed_ms = entry.at("exposed_ms");
    r.peak_bytes = entry.at("peak_bytes");
    for (const auto& [kind, t] : entry.at("ops").items())
      if (t.at("calls") > 0) r.ops[kind] = {t.at("calls"), t.at("sent_bytes"), t.at("received_bytes")};
  }
  for (const auto& entry : json.at("refused"))
    sweep.refusals.push_back({entry.at("method"), entry.at("ranks"), entry.at("seq"), entry.at("reason")});
  return sweep;
}

}  // namespace ingot::bench
