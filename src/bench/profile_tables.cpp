#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "bench/library_race.h"
#include "bench/suite.h"
#include "plan/balance.h"
#include "plan/work_kind.h"

namespace ingot::bench {
namespace {

using plan::MachineProfile;
using Json = nlohmann::ordered_json;

// Shapes of attention by what decides where they turn: dtype, heads, kv heads and window.
std::vector<plan::AttentionTime> turning_shapes(const MachineProfile& p) {
  std::vector<plan::AttentionTime> shapes;
  for (const auto& e : p.attention)
    if (std::none_of(shapes.begin(), shapes.end(), [&](const auto& s) {
          return s.dtype == e.dtype && s.heads == e.heads && s.kv_heads == e.kv_heads && s.window == e.window;
        }))
      shapes.push_back(e);
  return shapes;
}

std::string window_text(int64_t window) { return window > 0 ? fmt::format("{}", window) : "-"; }

std::string bound_of(const plan::AttentionTime& e, const plan::Balance& balance) {
  return intensity_of(e) < balance.flops_per_byte() ? "memory" : "compute";
}

std::string gemm_table(const MachineProfile& p) {
  const auto is_plain = [](const auto& e) { return e.kind == "plain"; };
  std::string text;
  if (std::any_of(p.gemm.begin(), p.gemm.end(), is_plain))
    text += fmt::format("\n{:<6}{:<13}{:>7}{:>7}{:>7}{:>12}{:>10}\n", "gemm", "pass", "m", "n", "k", "GFLOP/s", "of peak");
  for (const auto& e : p.gemm)
    if (is_plain(e))
      text += fmt::format("{:<6}{:<13}{:>7}{:>7}{:>7}{:>12.1f}{:>8.0f} %\n", e.dtype, e.pass, e.m, e.n, e.k, e.flops_per_s / 1e9,
                          100 * e.flops_per_s / p.peak_gemm(e.dtype));
  if (!std::all_of(p.gemm.begin(), p.gemm.end(), is_plain))
    text += fmt::format("\n{:<6}{:<9}{:<13}{:>7}{:>10}{:>7}{:>7}{:>7}{:>12}{:>10}\n", "gemm", "kind", "pass", "groups", "imbalance", "m",
                        "n", "k", "GFLOP/s", "of peak");
  for (const auto& e : p.gemm)
    if (!is_plain(e))
      text += fmt::format("{:<6}{:<9}{:<13}{:>7}{:>10}{:>7}{:>7}{:>7}{:>12.1f}{:>10}\n", e.dtype, e.kind, e.pass, e.groups,
                          e.kind == "grouped" ? fmt::format("{:g}", e.imbalance) : "-", e.m, e.n, e.k, e.flops_per_s / 1e9,
                          p.peak_gemm(e.dtype) > 0 ? fmt::format("{:.0f} %", 100 * e.flops_per_s / p.peak_gemm(e.dtype)) : "-");
  return text;
}

std::string attention_table(const MachineProfile& p) {
  if (p.attention.empty()) return "";
  std::string text = fmt::format("\n{:<11}{:>6}{:>8}{:>8}{:>10}{:>8}{:>12}{:>12}{:>18}{:>8}  {}\n", "attention", "batch", "seq", "heads",
                                 "head_dim", "window", "forward ms", "backward ms", "GFLOP/s fwd, bwd", "FLOP/B", "bound by");
  for (const auto& e : p.attention) {
    const auto balance = plan::balance_of(p, e.dtype);
    const auto rates = fmt::format("{:.1f} {:>8.1f}", flops_of(e, false) / e.forward_s / 1e9, flops_of(e, true) / e.backward_s / 1e9);
    text += fmt::format("{:<11}{:>6}{:>8}{:>8}{:>10}{:>8}{:>12.3f}{:>12.3f}{:>18}{:>8.1f}  {}\n", e.dtype, e.batch, e.seq,
                        fmt::format("{}/{}", e.heads, e.kv_heads), e.head_dim, window_text(e.window), e.forward_s * 1e3, e.backward_s * 1e3,
                        rates, intensity_of(e), balance ? bound_of(e, *balance) : "-");
  }
  std::set<std::string> said;
  for (const auto& shape : turning_shapes(p)) {
    const auto balance = plan::balance_of(p, shape.dtype);
    if (!balance) continue;
    if (said.insert(shape.dtype).second)
      text += fmt::format("\n{} balance: {:.1f} GFLOP/s of GEMMs over {:.1f} GB/s of memory = {:.1f} FLOPs per byte\n", shape.dtype,
                          balance->flops_per_s / 1e9, balance->bytes_per_s / 1e9, balance->flops_per_byte());
    const auto turn = plan::turning_seq(shape, balance->flops_per_byte());
    const auto name = fmt::format("{} with {}/{} heads{}", shape.dtype, shape.heads, shape.kv_heads,
                                  shape.window > 0 ? fmt::format(" and a window of {}", shape.window) : "");
    text += turn ? fmt::format("{} turns compute-bound at sequence length ≈ {:.0f}\n", name, *turn)
                 : fmt::format("{} stays memory-bound at any sequence length\n", name);
  }
  return text;
}

}  // namespace

Json balance_json(const MachineProfile& p) {
  Json all = Json::array();
  for (const auto& shape : turning_shapes(p)) {
    const auto balance = plan::balance_of(p, shape.dtype);
    if (!balance) continue;
    if (all.empty() || all.back()["dtype"] != shape.dtype)
      all.push_back({{"dtype", shape.dtype},
                     {"flops_per_s", balance->flops_per_s},
                     {"bytes_per_s", balance->bytes_per_s},
                     {"flops_per_byte", balance->flops_per_byte()},
                     {"turns", Json::array()},
                     {"attention", Json::array()}});
    const auto turn = plan::turning_seq(shape, balance->flops_per_byte());
    all.back()["turns"].push_back(
        {{"heads", shape.heads}, {"kv_heads", shape.kv_heads}, {"window", shape.window}, {"seq", turn ? Json(*turn) : Json(nullptr)}});
  }
  for (auto& one : all)
    for (const auto& e : p.attention) {
      const auto balance = plan::balance_of(p, e.dtype);
      if (one["dtype"] != e.dtype) continue;
      one["attention"].push_back({{"batch", e.batch},
                                  {"seq", e.seq},
                                  {"heads", e.heads},
                                  {"kv_heads", e.kv_heads},
                                  {"head_dim", e.head_dim},
                                  {"window", e.window},
                                  {"forward_flops_per_s", flops_of(e, false) / e.forward_s},
                                  {"backward_flops_per_s", flops_of(e, true) / e.backward_s},
                                  {"flops_per_byte", intensity_of(e)},
                                  {"bound", bound_of(e, *balance)}});
    }
  return all;
}

std::string tables(const MachineProfile& p) {
  std::string text = fmt::format("{} ({}), {} of {} cores, {}, torch {}\n", p.host, p.cpu, p.threads, p.cores, p.device, p.torch);
  text += gemm_table(p) + library_tables(p);
  if (!p.memory.empty()) text += fmt::format("\n{:<26}{:>14}{:>10}\n", "memory", "KiB per array", "GB/s");
  for (const auto& e : p.memory) text += fmt::format("{:<26}{:>14}{:>10.1f}\n", e.operation, e.bytes >> 10, e.bytes_per_s / 1e9);
  text += attention_table(p);
  if (!p.kernels.empty())
    text +=
        fmt::format("\n{:<27}{:<6}{:>9}{:>8}{:>7}{:>14}{:>14}\n", "kernel", "dtype", "rows", "width", "count", "forward ms", "backward ms");
  for (const auto& e : p.kernels)
    text += fmt::format("{:<27}{:<6}{:>9}{:>8}{:>7}{:>14.4f}{:>14.4f}\n", e.name, e.dtype, e.rows, e.width, e.count, e.forward_s * 1e3,
                        e.backward_s * 1e3);
  if (!p.within_steps.empty())
    text += fmt::format("\n{:<26}{:<6}{:>14}{:>14}{:>8}\n", "within steps", "dtype", "measured ms", "by itself ms", "ratio");
  for (const auto& e : p.within_steps) {
    const auto kind = plan::work_kind_named(e.kind);
    text += fmt::format("{:<26}{:<6}{:>14.2f}{:>14}{:>8}\n", kind ? plan::title_of(*kind) : e.kind, e.dtype, e.measured_s * 1e3,
                        e.predicted_s > 0 ? fmt::format("{:.2f}", e.predicted_s * 1e3) : "-",
                        e.predicted_s > 0 ? fmt::format("{:.2f}", e.measured_s / e.predicted_s) : "-");
  }
  if (!p.storage.empty())
    text += fmt::format("\n{:<18}{:>12}{:>9}  {:<9}{:>10}{:>11}\n", "storage, " + p.storage.front().folder_type, "block KiB", "writers",
                        "cache", "MB/s", "op/s");
  for (const auto& e : p.storage)
    text += fmt::format("{:<18}{:>12}{:>9}  {:<9}{:>10.1f}{:>11.0f}\n", e.operation, e.block_bytes >> 10, e.writers,
                        e.direct ? "O_DIRECT" : "buffered", e.bytes_per_s / 1e6, e.operations_per_s);
  return text;
}

}  // namespace ingot::bench
