#include "plan/latency.h"

#include <algorithm>

#include "base/error.h"

namespace ingot::plan {
namespace {

using layers::Operation;
using layers::Workload;

double d(int64_t x) { return static_cast<double>(x); }

int64_t element_bytes(const std::string& dtype) { return dtype == "bf16" ? 2 : 4; }

// Of `count` weights of equal size those that `tokens` with `top_k` experts each meet, evenly spread.
int64_t used_weights(const Operation& op, int64_t tokens, int64_t top_k) { return op.count > 1 ? std::min(op.count, tokens * top_k) : 1; }

// Small matrices inside a kernel (a router's, a convolution's) are fp32, and each of their elements is used once for every token.
double inner_weight_bytes(const Operation& op, int64_t tokens) { return op.flops / d(2 * tokens) * 4; }

double activation_bytes(const Workload& work, const Operation& op) {
  double bytes = 0;
  for (const auto* side : {&op.inputs, &op.outputs})
    for (const auto id : *side) bytes += d(work.activation(id).bytes());
  return bytes;
}

struct Need {
  double weight_bytes = 0, cache_bytes = 0, other_bytes = 0, flops = 0;
  int64_t launches = 1;
};

void note(const Need& need, const Device& device, Latency& all) {
  all.weight_bytes += need.weight_bytes;
  all.cache_bytes += need.cache_bytes;
  all.flops += need.flops;
  all.launches += need.launches;
  all.memory_s += (need.weight_bytes + need.cache_bytes + need.other_bytes) / device.memory_bytes_per_s;
  all.compute_s += need.flops / device.peak_flops();
  all.launch_s += d(need.launches) * device.launch_s;
}

// The head for a user's last token alone: one row, and all of its weights.
Need head_need(const models::Model& model, const Device& device, int64_t users) {
  const double elements = d(model.config().hidden) * d(model.config().vocab_size);
  return {.weight_bytes = elements * d(element_bytes(device.dtype)), .flops = 2 * d(users) * elements};
}

double decode_s(const Need& need, const Device& device) {
  const double bytes = need.weight_bytes + need.cache_bytes + need.other_bytes;
  return d(need.launches) * device.launch_s + std::max(bytes / device.memory_bytes_per_s, need.flops / device.peak_flops());
}

Need decode_need(const Workload& work, const Operation& op, const models::ModelConfig& c, int64_t layer, int64_t context) {
  const int64_t users = work.tokens();
  Need need{.other_bytes = activation_bytes(work, op), .flops = op.flops};
  if (op.kind == Operation::Kind::product) {
    const int64_t used = used_weights(op, users, c.top_k);
    need.launches = used;
    need.weight_bytes = op.weight_bytes * d(used) / d(op.count);
  } else if (op.kind == Operation::Kind::attention) {
    const int64_t window = c.window_of(layer), keys = window > 0 ? std::min(window, context) : context;
    need.cache_bytes = d(users * 2 * op.kv_heads * op.head_dim * keys * op.element_bytes);
    need.flops = d(users * 4 * op.heads * op.head_dim * keys);
  } else {
    need.launches = op.rows == 0 ? 0 : 1;
    need.weight_bytes = inner_weight_bytes(op, users);
  }
  return need;
}

// Behind the blocks: the final norm, and the head.
void add_end(const models::Model& model, const Device& device, int64_t users, Latency& all) {
  const Need norm{.other_bytes = d(users * model.config().hidden * (4 + element_bytes(device.dtype)))},
      head = head_need(model, device, users);
  for (const auto& need : {norm, head}) {
    note(need, device, all);
    all.total_s += decode_s(need, device);
  }
}

// A cluster's formulas as they are: the rates that stand for measurements begin at more rows than an expert gets of a prompt.
double product_s(const Operation& op, bool wide, const Device& device, const Rates& rates) {
  if (!device.cluster) return rates.product_s(Pass::forward, op.rows, op.in, op.out, wide);
  return schedule::compute_duration(schedule::Gemm{op.rows, op.out, op.in}, *device.cluster, device.cluster->rates(device.dtype));
}

void require_softmax(const models::Model& model) {
  if (model.config().family == "linear_llama")
    throw base::UsageError("latencies of linear attention are not modelled: the {} family is not taken here", model.config().family);
}

}  // namespace

double attention_s(const layers::Operation& op, const Device& device, const Rates& rates, bool backward) {
  if (!device.cluster) return rates.attention_s(op, backward);
  const double pairs = d(op.batch) * layers::visible_pairs(op.seq, op.window);
  const schedule::Attention work{pairs, op.heads, op.head_dim, 1, op.seq, op.seq, backward};
  return schedule::compute_duration(work, *device.cluster, device.cluster->rates(device.dtype));
}

Latency decode_latency(const models::Model& model, int64_t context, const Device& device, int64_t users) {
  require_softmax(model);
  Latency all;
  const auto walk = [&](const Workload& work, int64_t layer) {
    for (const auto& op : work.operations()) {
      const auto need = decode_need(work, op, model.config(), layer, context);
      note(need, device, all);
      all.total_s += decode_s(need, device);
    }
  };
  Workload embedding(users, 1, element_bytes(device.dtype));
  model.describe_embedding(embedding);
  walk(embedding, 0);
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    Workload work(users, 1, element_bytes(device.dtype));
    model.describe_block(layer, work);
    walk(work, layer);
  }
  add_end(model, device, users, all);
  return all;
}

Latency prefill_latency(const models::Model& model, int64_t tokens, const Device& device, const Rates& rates) {
  require_softmax(model);
  Latency all;
  const auto walk = [&](const Workload& work) {
    for (const auto& op : work.operations()) {
      Need need{.other_bytes = activation_bytes(work, op), .flops = op.flops};
      double seconds = 0;
      if (op.kind == Operation::Kind::product) {
        const int64_t used = used_weights(op, tokens, model.config().top_k);
        need.launches = used;
        need.weight_bytes = op.weight_bytes * d(used) / d(op.count);
        seconds = d(used) * product_s(op, op.element_bytes > work.element_bytes(), device, rates);
      } else if (op.kind == Operation::Kind::attention) {
        seconds = attention_s(op, device, rates);
      } else {
        need.launches = op.rows == 0 ? 0 : 1;
        need.weight_bytes = inner_weight_bytes(op, tokens);
        if (op.rows > 0) seconds = rates.kernel_s(op.name, op.rows, op.width, false).value_or(rates.move_s(need.other_bytes));
      }
      note(need, device, all);
      all.total_s += std::max(seconds, d(need.launches) * device.launch_s + need.weight_bytes / device.memory_bytes_per_s);
    }
  };
  Workload embedding(1, tokens, element_bytes(device.dtype));
  model.describe_embedding(embedding);
  walk(embedding);
  for (int64_t layer = 0; layer < model.config().layers; ++layer) {
    Workload work(1, tokens, element_bytes(device.dtype));
    model.describe_block(layer, work);
    walk(work);
  }
  add_end(model, device, 1, all);
  return all;
}

int64_t cache_bytes_per_token(const models::Model& model, int64_t element_bytes) {
  const auto& c = model.config();
  return 2 * c.layers * c.kv_heads * c.resolved_head_dim() * element_bytes;
}

}  // namespace ingot::plan
