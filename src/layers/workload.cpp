#include "layers/workload.h"

#include <algorithm>
#include <set>

#include "kernels/attention.h"

namespace ingot::layers {

Workload::Workload(int64_t batch, int64_t seq, int64_t element_bytes, Circumstances circumstances)
    : batch_(batch), seq_(seq), element_bytes_(element_bytes), circumstances_(circumstances) {}

ActivationId Workload::make(int64_t rows, int64_t width, int64_t element_bytes) {
  activations_.push_back({rows, width, element_bytes});
  return static_cast<ActivationId>(activations_.size()) - 1;
}

ActivationId Workload::narrow(int64_t width, int64_t rows) { return make(rows > 0 ? rows : tokens(), width, element_bytes_); }
ActivationId Workload::wide(int64_t width, int64_t rows) { return make(rows > 0 ? rows : tokens(), width, wide_bytes()); }
ActivationId Workload::indices(int64_t rows) { return make(rows, 1, 8); }

ActivationId Workload::enter(ActivationId tensor) {
  entering_.push_back(tensor);
  return tensor;
}

Operation& Workload::add(Operation op) {
  operations_.push_back(std::move(op));
  return operations_.back();
}

Operation& Workload::linear(ActivationId from, ActivationId to, std::vector<int64_t> outs, int64_t count) {
  const auto &input = activation(from), &output = activation(to);
  if (outs.empty()) outs = {output.width};
  for (size_t i = 0; i < outs.size(); ++i) {
    const auto cost = linear_cost(input.rows, input.width, outs[i], output.element_bytes, false);
    Operation op{.kind = Operation::Kind::product,
                 .name = "linear",
                 .inputs = {from},
                 .outputs = {to},
                 .saved = {from},
                 .element_bytes = output.element_bytes};
    op.rows = (input.rows + count - 1) / count;
    op.in = input.width;
    op.out = outs[i];
    op.count = count;
    op.flops = cost.flops;
    op.weight_bytes = cost.weight_bytes * static_cast<double>(count);
    add(std::move(op));
  }
  return operations_.back();
}

Operation& Workload::attention(ActivationId qkv, ActivationId out, int64_t heads, int64_t kv_heads, int64_t head_dim, int64_t window) {
  const auto cost = attention_cost(batch_, seq_, window, heads, kv_heads, head_dim, element_bytes_);
  Operation op{.kind = Operation::Kind::attention, .name = "attention", .inputs = {qkv}, .outputs = {out}, .element_bytes = element_bytes_};
  op.saved = {qkv, out, wide(heads)};  // the last one: log-sum-exp
  op.batch = batch_;
  op.seq = seq_;
  op.window = window;
  op.heads = heads;
  op.kv_heads = kv_heads;
  op.head_dim = head_dim;
  op.flops = cost.flops;
  const auto scratch = kernels::attention_scratch(batch_, seq_, heads, kv_heads, head_dim);
  op.forward_scratch_bytes = scratch.forward_bytes;
  op.backward_scratch_bytes = scratch.backward_bytes;
  return add(std::move(op));
}

Operation& Workload::kernel(std::string name, std::vector<ActivationId> inputs, std::vector<ActivationId> outputs,
                            std::vector<ActivationId> saved, int64_t rows, int64_t width) {
  Operation op{.kind = Operation::Kind::kernel,
               .name = std::move(name),
               .inputs = std::move(inputs),
               .outputs = std::move(outputs),
               .saved = std::move(saved)};
  const auto& sized = activation(op.outputs.front());
  op.rows = rows > 0 ? rows : sized.rows;
  op.width = width > 0 ? width : sized.width;
  op.element_bytes = element_bytes_;
  return add(std::move(op));
}

Operation& Workload::inner_linear(int64_t in, int64_t out, int64_t count) {
  const auto cost = linear_cost(tokens(), in, out, element_bytes_, false);
  Operation op{.kind = Operation::Kind::product, .name = "linear", .element_bytes = element_bytes_};
  op.rows = tokens();
  op.in = in;
  op.out = out;
  op.count = count;
  op.flops = cost.flops * static_cast<double>(count);
  op.weight_bytes = cost.weight_bytes * static_cast<double>(count);
  op.is_inner = true;
  return add(std::move(op));
}

Operation& Workload::inner_kernel(std::string name, int64_t rows, int64_t width, int64_t count) {
  Operation op{.kind = Operation::Kind::kernel, .name = std::move(name), .element_bytes = element_bytes_};
  op.rows = rows;
  op.width = width;
  op.count = count;
  op.is_inner = true;
  return add(std::move(op));
}

Cost cost_of(const Workload& workload) {
  Cost cost;
  std::set<ActivationId> saved;
  for (const auto& op : workload.operations()) {
    cost.flops += op.flops;
    cost.weight_bytes += op.weight_bytes;
    for (const auto* side : {&op.inputs, &op.outputs})
      for (const auto id : *side) cost.activation_bytes += static_cast<double>(workload.activation(id).bytes());
    saved.insert(op.saved.begin(), op.saved.end());
  }
  for (const auto id : saved) cost.saved_bytes += static_cast<double>(workload.activation(id).bytes());
  return cost;
}

}  // namespace ingot::layers
