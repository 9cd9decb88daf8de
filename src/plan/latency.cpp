#include "plan/latency.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "plan/priced_pass.h"

namespace ingot::plan {
namespace {

double d(int64_t x) { return static_cast<double>(x); }

double bytes_of(const device::Trace::TensorShape& shape) {
  return d(std::accumulate(shape.sizes.begin(), shape.sizes.end(), static_cast<int64_t>(c10::elementSize(shape.dtype)),
                           std::multiplies<int64_t>()));
}

bool is_attention(const PassOperation& op) { return op.kind == WorkKind::attention || op.kind == WorkKind::linear_attention; }

double weight_bytes(const PassOperation& op) {
  const auto sizes = matmul_sizes(op);
  return sizes && !is_attention(op) ? bytes_of(op.inputs.back()) : 0;
}

// What attention reads of its keys and values; behind a window no more than that. A composition of ATen operations reads what it reads.
double moved_bytes(const PassOperation& op) {
  if (op.name != "attention") return d(op.moved_bytes());
  const auto& q = op.inputs[0].sizes;  // [batch, queries, heads, head_dim]
  const double visited = op.flops / (4 * d(q[0] * q[1] * q[2] * q[3])), all = d(op.inputs[1].sizes[1]);
  const double unseen = q[1] == 1 ? 1 - std::min(1.0, visited / all) : 0;
  return d(op.moved_bytes()) - unseen * (bytes_of(op.inputs[1]) + bytes_of(op.inputs[2]));
}

// Keys and values of `tokens` tokens of each user, the last of which is the one that sees them.
double cache_bytes(const models::Model& model, int64_t users, int64_t tokens, const std::string& dtype) {
  const auto& c = model.config();
  const double each = d(2 * users * c.kv_heads * c.resolved_head_dim() * (dtype == "bf16" ? 2 : 4));
  double bytes = 0;
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const int64_t window = c.window_of(layer);
    if (!model.mixes_linearly(layer)) bytes += each * d(window > 0 ? std::min(window, tokens) : tokens);
  }
  return bytes;
}

using Seconds = std::function<double(const PassOperation&)>;  // of one, its launch left out

void add(const PassSegment& segment, const Device& device, const Seconds& seconds, Latency& all) {
  for (const auto& op : segment.operations) {
    const double calls = d(op.calls);
    all.weight_bytes += calls * weight_bytes(op);
    all.flops += calls * op.flops;
    all.launches += op.calls;
    all.memory_s += calls * moved_bytes(op) / device.memory_bytes_per_s;
    all.compute_s += calls * op.flops / device.peak_flops();
    all.launch_s += calls * device.launch_s;
    all.total_s += calls * seconds(op);
  }
}

Latency sum(const PassTrace& trace, int64_t layers, const Device& device, const Seconds& seconds) {
  Latency all;
  add(trace.embedding.forward, device, seconds, all);
  for (int64_t layer = 0; layer < layers; ++layer) add(trace.block(layer).forward, device, seconds, all);
  add(trace.head.forward, device, seconds, all);
  return all;
}

InferenceShape shape_of(const Device& device, int64_t users, int64_t context, int64_t tokens) {
  return {.batch = users, .context = context, .tokens = tokens, .precision = device.dtype, .target = device.target()};
}

}  // namespace

Latency decode_latency(const models::Model& model, int64_t context, const Device& device, int64_t users) {
  const auto trace = trace_inference(model.config(), shape_of(device, users, context, 1));
  auto all = sum(trace, model.config().layers, device, [&](const PassOperation& op) {
    return device.launch_s + std::max(moved_bytes(op) / device.memory_bytes_per_s, op.flops / device.peak_flops());
  });
  all.cache_bytes = cache_bytes(model, users, context + 1, device.dtype);
  return all;
}

Latency prefill_latency(const models::Model& model, int64_t tokens, const Device& device, const Rates& rates) {
  const auto trace = trace_inference(model.config(), shape_of(device, 1, 0, tokens));
  return sum(trace, model.config().layers, device, [&](const PassOperation& op) {
    return std::max(price_of(op, {}, rates), device.launch_s + weight_bytes(op) / device.memory_bytes_per_s);
  });
}

}  // namespace ingot::plan
