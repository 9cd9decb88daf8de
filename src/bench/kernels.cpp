#include "bench/kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "device/device.h"
#include "device/tracer.h"
#include "kernels/differentiable.h"
#include "layers/dtype.h"
#include "optim/operators.h"

namespace ingot::bench {
namespace {

using kernels::Operator, kernels::OperatorCall, kernels::OperatorSizes;

// Larger than the last cache of most machines.
constexpr int64_t kWorkingSetBytes = int64_t{48} << 20;
constexpr int64_t kMostInstances = 32;

struct Times {
  Samples forward, backward;  // of all instances
  bool has_backward = false;
};

// One round over all instances.
void run_once(std::vector<OperatorCall>& instances, at::Device device, Times& times) {
  std::vector<std::vector<at::Tensor>> outputs, gradients;
  times.forward.add(
      [&] {
        for (auto& instance : instances) outputs.push_back(instance.forward(instance.inputs));
      },
      device);
  times.has_backward = instances[0].has_backward();
  if (!times.has_backward) return;
  for (const auto& of_one : outputs) {
    gradients.emplace_back();
    for (const auto& output : of_one) gradients.back().push_back(at::full_like(output, 1e-3));
  }
  times.backward.add(
      [&] {
        for (size_t i = instances.size(); i-- > 0;) kernels::backward(outputs[i], gradients[i]);
      },
      device);
  for (auto& instance : instances)
    for (auto& input : instance.inputs) input.mutable_grad().reset();
}

// What one call moves and computes, counted where nothing is computed.
void count_work(const Operator& op, OperatorSizes sizes, plan::KernelTime& result) {
  const device::CountingDevice counting(device::is_cpu(sizes.device) ? device::Target::cpu : device::Target::gpu);
  sizes.device = counting.device();
  const auto call = op.make(sizes);
  device::Tracer tracer(counting.device());
  const auto outputs = call.forward(call.inputs);
  const int64_t between = tracer.position();
  if (call.has_backward()) {
    std::vector<at::Tensor> gradients;
    for (const auto& output : outputs) gradients.push_back(at::empty_like(output));
    kernels::backward(outputs, gradients);
  }
  const auto trace = tracer.finish();
  for (const auto& operation : trace.operations) {
    const bool is_forward = operation.position < between;
    (is_forward ? result.forward_bytes : result.backward_bytes) += static_cast<double>(operation.read_bytes + operation.written_bytes);
    (is_forward ? result.forward_flops : result.backward_flops) += operation.flops;
  }
}

}  // namespace

plan::KernelTime measure_kernel(const std::string& name, const std::string& dtype, int64_t rows, int64_t width, const Repeats& repeats,
                                at::Device device) {
  const auto& all_operators = optim::operators();
  const auto* op = kernels::find_operator(all_operators, name);
  if (!op) {
    std::vector<std::string> names;
    for (const auto& other : all_operators) names.emplace_back(other.name);
    throw base::UsageError("unknown kernel '{}'{}", name, base::did_you_mean(name, names));
  }
  plan::KernelTime result{.name = name, .dtype = dtype, .rows = rows, .width = width};
  const OperatorSizes sizes{rows, width, layers::precision_named(dtype).dtype, device};
  count_work(*op, sizes, result);
  std::vector<OperatorCall> instances;
  instances.push_back(op->make(sizes));
  result.count = instances[0].count;
  const int64_t copies = instances[0].is_repeatable ? 1 : std::clamp<int64_t>(kWorkingSetBytes / (rows * width * 4 * 3), 1, kMostInstances);
  while (static_cast<int64_t>(instances.size()) < copies) instances.push_back(op->make(sizes));

  Times warm, times;
  for (int i = 0; i < repeats.warmup; ++i) run_once(instances, device, warm);
  do run_once(instances, device, times);
  while (!times.forward.enough(repeats) || (times.has_backward && !times.backward.enough(repeats)));
  const auto all = static_cast<double>(instances.size());
  result.forward_s = times.forward.result() / all;
  result.backward_s = times.has_backward ? times.backward.result() / all : 0;
  return result;
}

}  // namespace ingot::bench
