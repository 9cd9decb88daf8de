#include "plan/trace/trace_report.h"

#include <algorithm>

#include "base/text.h"

namespace ingot::plan {
namespace {

using base::format_bytes;
using base::format_count;
using device::Trace;
using Json = nlohmann::ordered_json;

constexpr StepPart kParts[] = {StepPart::data, StepPart::forward, StepPart::backward, StepPart::optimizer, StepPart::other};

struct Sum {
  int64_t calls = 0, read_bytes = 0, written_bytes = 0;
  double flops = 0;
  void add(const Trace::Operation& o) {
    ++calls;
    read_bytes += o.read_bytes;
    written_bytes += o.written_bytes;
    flops += o.flops;
  }
  Json json() const { return {{"calls", calls}, {"flops", flops}, {"read_bytes", read_bytes}, {"written_bytes", written_bytes}}; }
};

struct CommunicationSum {
  int64_t calls = 0, sent_bytes = 0, received_bytes = 0, blocking = 0;
};

struct Sums {
  std::map<StepPart, Sum> parts;
  std::map<std::string, Sum> kernels;
  std::map<std::pair<std::string, std::string>, CommunicationSum> communication;  // axis, kind
  std::map<std::string, int64_t> waits;                                           // "item in optimizer"

  explicit Sums(const StepTrace& step) {
    const auto& trace = step.trace;
    for (const auto& o : trace.operations) {
      parts[step.part_of(o.scope)].add(o);
      kernels[std::string(trace.name_of(o))].add(o);
    }
    for (const auto& c : trace.communications) {
      auto& sum = communication[{c.axis, c.kind}];
      ++sum.calls;
      sum.sent_bytes += c.sent_bytes;
      sum.received_bytes += c.received_bytes;
      sum.blocking += c.is_blocking ? 1 : 0;
    }
    for (const auto& access : trace.host_accesses)
      if (access.waits)
        ++waits[fmt::format("{} in {}", trace.names[static_cast<size_t>(access.name)], name_of(step.part_of(access.scope)))];
  }
};

template <class Value>
std::vector<std::pair<std::string, Value>> largest(const std::map<std::string, Value>& all, int64_t count, auto&& size) {
  std::vector<std::pair<std::string, Value>> sorted(all.begin(), all.end());
  std::stable_sort(sorted.begin(), sorted.end(), [&](const auto& a, const auto& b) { return size(a.second) > size(b.second); });
  if (static_cast<int64_t>(sorted.size()) > count) sorted.resize(static_cast<size_t>(count));
  return sorted;
}

Json shapes_json(const std::vector<Trace::TensorShape>& shapes) {
  auto all = Json::array();
  for (const auto& shape : shapes) all.push_back({{"dtype", c10::toString(shape.dtype)}, {"shape", shape.sizes}});
  return all;
}

}  // namespace

std::string trace_text(const StepTrace& step, int64_t top) {
  const Sums sums(step);
  const auto& trace = step.trace;
  auto text = fmt::format("{}: {} parameters and {} tokens on this rank; traced in {:.0f} ms\n\n", step.layout,
                          format_count(static_cast<double>(step.parameters)), step.tokens, step.seconds * 1e3);
  text += fmt::format("{:<12}{:>12}{:>14}{:>14}{:>14}\n", "part", "operations", "FLOPs", "read", "written");
  const auto row = [&](const std::string& name, const Sum& s) {
    text += fmt::format("{:<12}{:>12}{:>14}{:>14}{:>14}\n", name, s.calls, format_count(s.flops), format_bytes(s.read_bytes),
                        format_bytes(s.written_bytes));
  };
  Sum all;
  for (const auto& o : trace.operations) all.add(o);
  for (const auto part : kParts)
    if (const auto found = sums.parts.find(part); found != sums.parts.end()) row(name_of(part), found->second);
  row("all", all);

  text += fmt::format("\nmemory of tensors: {} between steps, {} at the peak (an allocator's rounding comes on top)\n",
                      format_bytes(step.rest_bytes), format_bytes(trace.peak_bytes));
  for (const auto& [name, bytes] : largest(step.peak_by_name(), top, [](int64_t b) { return b; }))
    text += fmt::format("{:>14}  {}\n", format_bytes(bytes), name);

  if (!sums.communication.empty()) {
    size_t width = 0;
    for (const auto& [key, c] : sums.communication) width = std::max(width, key.first.size() + 2);
    const auto line = [&](const auto&... cells) { text += fmt::format("{:<{}}{:<18}{:>8}{:>14}{:>14}{:>10}\n", cells...); };
    text += "\n";
    line("axis", width, "communication", "calls", "sent", "received", "blocking");
    for (const auto& [key, c] : sums.communication)
      line(key.first, width, key.second, c.calls, format_bytes(c.sent_bytes), format_bytes(c.received_bytes), c.blocking);
  }
  text += fmt::format("\nthe host waits for the device {} times", trace.waits());
  std::vector<std::string> waits;
  for (const auto& [where, count] : sums.waits) waits.push_back(fmt::format("{} x {}", count, where));
  text += waits.empty() ? "\n" : ": " + base::join(waits, ", ") + "\n";

  text += fmt::format("\n{:<34}{:>10}{:>14}{:>14}{:>14}\n", "kernel", "calls", "FLOPs", "read", "written");
  for (const auto& [name, s] :
       largest(sums.kernels, top, [](const Sum& s) { return s.flops + static_cast<double>(s.read_bytes + s.written_bytes); }))
    text += fmt::format("{:<34}{:>10}{:>14}{:>14}{:>14}\n", name, s.calls, format_count(s.flops), format_bytes(s.read_bytes),
                        format_bytes(s.written_bytes));
  if (!trace.guessed.empty())
    text += fmt::format("\nno shape rule, taken to keep their outputs' shapes: {}\n", base::join(trace.guessed, ", "));
  return text;
}

Json trace_json(const StepTrace& step, bool operations) {
  const Sums sums(step);
  const auto& trace = step.trace;
  Json json = {
      {"layout", step.layout},   {"parameters", step.parameters}, {"tokens", step.tokens},          {"operations", trace.operations.size()},
      {"flops", trace.flops()},  {"rest_bytes", step.rest_bytes}, {"peak_bytes", trace.peak_bytes}, {"host_waits", trace.waits()},
      {"traced_s", step.seconds}};
  for (const auto part : kParts)
    if (const auto found = sums.parts.find(part); found != sums.parts.end()) json["parts"][name_of(part)] = found->second.json();
  for (const auto& [name, bytes] : step.peak_by_name()) json["peak"][name] = bytes;
  json["communication"] = Json::array();
  for (const auto& [key, c] : sums.communication)
    json["communication"].push_back({{"axis", key.first},
                                     {"kind", key.second},
                                     {"calls", c.calls},
                                     {"sent_bytes", c.sent_bytes},
                                     {"received_bytes", c.received_bytes},
                                     {"blocking", c.blocking}});
  for (const auto& [name, s] : sums.kernels) json["kernels"][name] = s.json();
  for (const auto& [where, count] : sums.waits) json["waits"][where] = count;
  json["guessed"] = trace.guessed;
  if (!operations) return json;
  json["trace"] = Json::array();
  for (const auto& o : trace.operations)
    json["trace"].push_back({{"name", trace.name_of(o)},
                             {"position", o.position},
                             {"scope", trace.path_of(o.scope)},
                             {"part", name_of(step.part_of(o.scope))},
                             {"flops", o.flops},
                             {"read_bytes", o.read_bytes},
                             {"written_bytes", o.written_bytes},
                             {"inputs", shapes_json(trace.inputs_of(o))},
                             {"outputs", shapes_json(trace.outputs_of(o))}});
  return json;
}

std::string chrome_trace(const StepTrace& step, const schedule::Cluster& cluster, const std::string& dtype) {
  const auto& trace = step.trace;
  const auto& rates = cluster.rates(dtype);
  Json events = Json::array();
  const auto name_lane = [&](int lane, const std::string& name) {
    events.push_back({{"ph", "M"}, {"pid", 1}, {"tid", lane}, {"name", "thread_name"}, {"args", {{"name", name}}}});
  };
  name_lane(0, "kernels");
  // When each position of the trace comes, in microseconds: kernels run one after another.
  std::vector<std::pair<int64_t, double>> ends;
  double now = 0;
  for (const auto& o : trace.operations) {
    const double bytes_s = static_cast<double>(o.read_bytes + o.written_bytes) / cluster.memory_bytes_per_s;
    const double us = 1e6 * (cluster.kernel_launch_s + std::max(o.flops / rates.gemm_flops_per_s, bytes_s));
    events.push_back({{"ph", "X"},
                      {"pid", 1},
                      {"tid", 0},
                      {"ts", now},
                      {"dur", us},
                      {"name", trace.name_of(o)},
                      {"cat", name_of(step.part_of(o.scope))},
                      {"args", {{"scope", trace.path_of(o.scope)}, {"flops", o.flops}, {"bytes", o.read_bytes + o.written_bytes}}}});
    now += us;
    ends.emplace_back(o.position, now);
  }
  const auto time_of = [&](int64_t position) {
    const auto after = std::lower_bound(ends.begin(), ends.end(), std::pair(position, 0.0));
    return after == ends.begin() ? 0.0 : std::prev(after)->second;
  };
  std::map<std::string, int> lanes;
  for (const auto& c : trace.communications) {
    const auto [lane, is_new] = lanes.try_emplace(c.axis, static_cast<int>(lanes.size()) + 1);
    if (is_new) name_lane(lane->second, "communication along " + c.axis);
    const auto& links = c.ranks > cluster.devices_per_node && cluster.network.bytes_per_s > 0 ? cluster.network : cluster.node;
    const double us = 1e6 * (cluster.message_launch_s + links.latency_s +
                             static_cast<double>(std::max(c.sent_bytes, c.received_bytes)) / std::max(1.0, links.bytes_per_s));
    events.push_back({{"ph", "X"},
                      {"pid", 1},
                      {"tid", lane->second},
                      {"ts", time_of(c.start)},
                      {"dur", us},
                      {"name", c.kind},
                      {"cat", "communication"},
                      {"args",
                       {{"scope", trace.path_of(c.scope)},
                        {"sent", c.sent_bytes},
                        {"received", c.received_bytes},
                        {"waited at", c.wait == Trace::kNever ? -1.0 : time_of(c.wait)},
                        {"blocking", c.is_blocking}}}});
  }
  // Bytes that live, at every change within the step.
  const int64_t begin = trace.operations.empty() ? 0 : trace.operations.front().position;
  std::map<int64_t, int64_t> changes;
  for (const auto& a : trace.allocations) {
    changes[std::max(a.begin, begin)] += a.bytes;
    if (a.end != Trace::kNever) changes[std::max(a.end, begin)] -= a.bytes;
  }
  int64_t alive = trace.before_bytes;
  for (const auto& [position, change] : changes) {
    alive += change;
    events.push_back({{"ph", "C"}, {"pid", 1}, {"ts", time_of(position)}, {"name", "memory"}, {"args", {{"bytes", alive}}}});
  }
  return Json{{"traceEvents", events}, {"displayTimeUnit", "ms"}, {"otherData", {{"layout", step.layout}, {"cluster", cluster.name}}}}.dump(
      -1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace ingot::plan
