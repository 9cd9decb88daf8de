#include "report/profile/facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

namespace ingot::report {
namespace {

constexpr double kStepShare = 0.75;    // of the rate before
constexpr double kSettledShare = 0.8;  // of the best rate

double d(int64_t x) { return static_cast<double>(x); }

double seconds_of(const plan::AttentionTime& a, bool backward) { return backward ? a.backward_s : a.forward_s; }

}  // namespace

int arrays_of(const std::string& operation) {
  if (operation == "add" || operation == "triad") return 3;
  return operation == "copy" || operation == "scale" || operation == "dot" || operation == "host_copy" ? 2 : 1;
}

std::string AttentionCurve::name() const {
  auto text = fmt::format("head of {}, {}/{} heads", head_dim, heads, kv_heads);
  if (window > 0) text += fmt::format(", window {}", window);
  return batch > 0 ? text + fmt::format(", batch {}", batch) : text;
}

std::vector<CacheStep> cache_steps(const std::vector<plan::MemoryRate>& memory, const std::string& operation) {
  std::vector<const plan::MemoryRate*> points;
  for (const auto& e : memory)
    if (e.operation == operation) points.push_back(&e);
  std::stable_sort(points.begin(), points.end(), [](const auto* a, const auto* b) { return a->bytes < b->bytes; });
  std::vector<CacheStep> steps;
  const int arrays = arrays_of(operation);
  for (size_t i = 1; i < points.size(); ++i)
    if (points[i]->bytes_per_s <= kStepShare * points[i - 1]->bytes_per_s && points[i]->bytes > points[i - 1]->bytes)
      steps.push_back(
          {operation, arrays * points[i - 1]->bytes, arrays * points[i]->bytes, points[i - 1]->bytes_per_s, points[i]->bytes_per_s});
  return steps;
}

std::vector<AttentionCurve> attention_curves(const plan::MachineProfile& profile) {
  std::set<int64_t> batches;
  for (const auto& e : profile.attention) batches.insert(e.batch);
  using Shape = std::tuple<std::string, int64_t, int64_t, int64_t, int64_t, int64_t, bool>;
  std::map<Shape, AttentionCurve> curves;
  for (const auto& e : profile.attention)
    for (const bool backward : {false, true}) {
      auto& curve = curves[{e.dtype, e.head_dim, e.heads, e.kv_heads, e.window, e.batch, backward}];
      curve.dtype = e.dtype;
      curve.head_dim = e.head_dim;
      curve.heads = e.heads;
      curve.kv_heads = e.kv_heads;
      curve.window = e.window;
      curve.batch = batches.size() > 1 ? e.batch : 0;
      curve.backward = backward;
      curve.points.push_back(&e);
    }
  std::vector<AttentionCurve> out;
  for (auto& [key, curve] : curves) {
    std::stable_sort(curve.points.begin(), curve.points.end(), [](const auto* a, const auto* b) { return a->seq < b->seq; });
    const auto rate = [&](const plan::AttentionTime* p) { return flops_of(*p, curve.backward) / seconds_of(*p, curve.backward); };
    for (const auto* p : curve.points) curve.best_flops_per_s = std::max(curve.best_flops_per_s, rate(p));
    for (size_t i = curve.points.size(); i-- > 0 && rate(curve.points[i]) >= kSettledShare * curve.best_flops_per_s;)
      curve.measured_seq = curve.points[i]->seq;
    if (const auto balance = plan::balance_of(profile, curve.dtype)) {
      curve.ridge = balance->flops_per_byte();
      curve.turn_seq = plan::turning_seq(*curve.points.front(), curve.ridge);
    }
    out.push_back(std::move(curve));
  }
  return out;
}

double CollectiveLine::bus_bandwidth(const plan::CollectiveTime& time) const {
  return d(time.bytes) / time.seconds * plan::bus_factor(operation, d(ranks));
}

double CollectiveLine::best_bus_bandwidth() const {
  double best = 0;
  for (const auto* p : points) best = std::max(best, bus_bandwidth(*p));
  return best;
}

std::vector<CollectiveLine> collective_lines(const plan::MachineProfile& profile) {
  std::vector<CollectiveLine> lines;
  for (const auto& e : profile.collectives) {
    auto found = std::find_if(lines.begin(), lines.end(), [&](const auto& l) {
      return l.operation == e.operation && l.dtype == e.dtype && l.placement == e.placement && l.ranks == e.ranks && l.groups == e.groups;
    });
    if (found == lines.end())
      found = lines.insert(lines.end(), {.operation = e.operation,
                                         .dtype = e.dtype,
                                         .placement = e.placement,
                                         .ranks = e.ranks,
                                         .groups = e.groups,
                                         .points = {},
                                         .line = {}});
    found->points.push_back(&e);
  }
  for (auto& line : lines) {
    std::stable_sort(line.points.begin(), line.points.end(), [](const auto* a, const auto* b) { return a->bytes < b->bytes; });
    std::vector<plan::MessageTime> times;
    for (const auto* p : line.points) times.push_back({d(p->bytes), p->seconds});
    line.line = plan::fitted_line(times);
  }
  return lines;
}

std::vector<std::string> dtypes_of(const plan::MachineProfile& profile) {
  std::vector<std::string> dtypes;
  const auto add = [&](const auto& entries) {
    for (const auto& e : entries)
      if (std::find(dtypes.begin(), dtypes.end(), e.dtype) == dtypes.end()) dtypes.push_back(e.dtype);
  };
  add(profile.gemm);
  add(profile.attention);
  add(profile.kernels);
  return dtypes;
}

}  // namespace ingot::report
