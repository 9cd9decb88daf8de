#include "kernels/operator_checks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

#include <memory>

#include "device/test_device.h"
#include "device/tracer.h"

namespace ingot::kernels {
namespace {

using device::CountingDevice, device::Target;

constexpr at::ScalarType kDtypes[] = {at::kFloat, at::kBFloat16};

at::Tensor random_like(const at::Tensor& like, int64_t seed) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randn(like.sizes(), generator, at::kDouble).to(like.device(), like.scalar_type());
}

TensorList leaves_of(const TensorList& inputs) {
  TensorList leaves;
  for (const auto& x : inputs) leaves.push_back(x.detach().clone().set_requires_grad(x.requires_grad()));
  return leaves;
}

// On the host, in fp64.
TensorList upcast(const TensorList& inputs) {
  TensorList wide;
  for (const auto& x : inputs)
    wide.push_back(x.is_floating_point() ? x.detach().cpu().to(at::kDouble).set_requires_grad(x.requires_grad()) : x.cpu());
  return wide;
}

TensorList upstream_of(const TensorList& outputs) {
  TensorList upstream;
  for (size_t i = 0; i < outputs.size(); ++i) upstream.push_back(random_like(outputs[i], 1000 + static_cast<int64_t>(i)));
  return upstream;
}

TensorList differentiated(const TensorList& inputs) {
  TensorList wanted;
  for (const auto& x : inputs)
    if (x.requires_grad()) wanted.push_back(x);
  return wanted;
}

TensorList gradients_of(const TensorList& outputs, const TensorList& inputs) {
  const auto wanted = differentiated(inputs);
  return wanted.empty() ? wanted : gradients(outputs, wanted, upstream_of(outputs));
}

// Outputs, then gradients of the inputs that have one.
TensorList run(const OperatorCall::Function& function, const TensorList& inputs) {
  const auto leaves = leaves_of(inputs);
  auto all = function(leaves);
  const auto grads = gradients_of(all, leaves);
  all.insert(all.end(), grads.begin(), grads.end());
  return all;
}

double dot(const TensorList& a, const TensorList& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] * b[i]).sum().item<double>();
  return sum;
}

// What one call on a counting device does; forward alone where no cost is stated.
struct Counted {
  device::Trace trace;
  OperatorCost cost;  // of the fused kernels; FLOPs of all operations
  std::vector<const device::Trace::Operation*> fused;
};

bool is_fused(const Operator& op, std::string_view name) {
  return std::any_of(op.traced.begin(), op.traced.end(), [&](const TracedKernel& kernel) { return kernel.name == name; });
}

int64_t storage_bytes(const TensorList& tensors, const TensorList& older) {
  std::map<const void*, int64_t> storages;
  for (const auto& x : tensors) storages[x.storage().unsafeGetStorageImpl()] = static_cast<int64_t>(x.storage().nbytes());
  for (const auto& x : older) storages.erase(x.storage().unsafeGetStorageImpl());
  int64_t sum = 0;
  for (const auto& [storage, bytes] : storages) sum += bytes;
  return sum;
}

// Of what was allocated between two positions of a trace. A device's own counters will not do: autograd's threads free late.
struct Memory {
  int64_t peak_bytes = 0, left_bytes = 0;
};
Memory memory_of(const device::Trace& trace, int64_t begin, int64_t end) {
  std::map<int64_t, int64_t> changes;
  for (const auto& a : trace.allocations) {
    if (a.begin < begin || a.begin >= end) continue;
    changes[a.begin] += a.bytes;
    if (a.end < end) changes[a.end] -= a.bytes;
  }
  Memory memory;
  for (const auto& [position, bytes] : changes) {
    memory.left_bytes += bytes;
    memory.peak_bytes = std::max(memory.peak_bytes, memory.left_bytes);
  }
  return memory;
}

// Of a call on copies of its inputs, of which the graph alone is kept.
int64_t saved_bytes(const OperatorCall& call, at::Device device) {
  device::Tracer tracer(device);
  std::vector<std::shared_ptr<torch::autograd::Node>> graph;
  {
    TensorList copies;
    for (const auto& x : call.inputs) copies.push_back(x.clone());
    for (const auto& output : call.forward(copies)) graph.push_back(output.grad_fn());
  }
  const int64_t end = tracer.position();
  return memory_of(tracer.finish(), 0, end).left_bytes;
}

Counted count(const Operator& op, Size size, at::ScalarType dtype, Target target) {
  const CountingDevice counting(target);
  const auto on = counting.device();
  const auto call = op.make({size.first, size.second, dtype, on});
  Counted counted;
  const auto leaves = leaves_of(call.inputs);
  const auto wanted = op.cost ? differentiated(leaves) : TensorList();  // of some layers gradients go elsewhere
  device::Tracer tracer(on);
  const auto outputs = call.forward(leaves);
  const int64_t between = tracer.position();
  const auto upstream = wanted.empty() ? TensorList() : upstream_of(outputs);
  const int64_t backward_begin = tracer.position();
  const auto made = wanted.empty() ? TensorList() : gradients(outputs, wanted, upstream);
  counted.trace = tracer.finish();
  const auto forward = memory_of(counted.trace, 0, between), backward = memory_of(counted.trace, backward_begin, counted.trace.positions);
  counted.cost.forward.scratch_bytes = forward.peak_bytes - forward.left_bytes;
  counted.cost.backward.scratch_bytes = backward.peak_bytes - storage_bytes(made, upstream);
  for (const auto& operation : counted.trace.operations) {
    auto& pass = operation.position < between ? counted.cost.forward : counted.cost.backward;
    pass.flops += operation.flops;
    if (!is_fused(op, counted.trace.name_of(operation))) continue;
    pass.read_bytes += operation.read_bytes;
    pass.written_bytes += operation.written_bytes;
    counted.fused.push_back(&operation);
  }
  if (!wanted.empty()) counted.cost.saved_bytes = saved_bytes(call, on);
  return counted;
}

void expect_same(const OperatorCost::Pass& counted, const OperatorCost::Pass& stated, const char* pass) {
  EXPECT_EQ(counted.flops, stated.flops) << "FLOPs, " << pass;
  EXPECT_EQ(counted.read_bytes, stated.read_bytes) << "bytes read, " << pass;
  EXPECT_EQ(counted.written_bytes, stated.written_bytes) << "bytes written, " << pass;
  if (stated.scratch_bytes == OperatorCost::kVaries) return;
  EXPECT_EQ(counted.scratch_bytes, stated.scratch_bytes) << "scratch, " << pass;
}

}  // namespace

// Outputs and all gradients in fp32 and bf16, on the device that tests run on, against the reference and autograd in fp64 on the CPU.
TEST_P(OperatorTest, computes_what_its_reference_does) {
  const auto& op = *GetParam();
  at::manual_seed(1);
  for (const auto dtype : kDtypes)
    for (const auto& [rows, width] : op.checked) {
      SCOPED_TRACE(fmt::format("{}x{} {}", rows, width, c10::toString(dtype)));
      const auto call = op.make({rows, width, dtype, device::test_device()}), wide = op.make({rows, width, at::kDouble, at::kCPU});
      const auto want = run(wide.reference ? wide.reference : wide.forward, upcast(call.inputs)), got = run(call.forward, call.inputs);
      ASSERT_EQ(got.size(), want.size());
      const double tolerance = dtype == at::kFloat ? op.tolerance.fp32 : op.tolerance.bf16;
      for (size_t i = 0; i < got.size(); ++i) {
        ASSERT_EQ(got[i].sizes(), want[i].sizes()) << "tensor " << i;
        const double largest = want[i].abs().max().item<double>();
        const double difference = (got[i].cpu().to(at::kDouble) - want[i]).abs().max().item<double>();
        EXPECT_LE(difference, tolerance * (largest + 1e-3)) << "tensor " << i << " of " << got.size();
      }
    }
}

// In fp64: autograd's gradients against differences along a random direction, one input at a time.
TEST_P(OperatorTest, has_the_gradients_of_its_finite_differences) {
  const auto& op = *GetParam();
  at::manual_seed(2);
  for (const auto& [rows, width] : op.checked) {
    SCOPED_TRACE(fmt::format("{}x{}", rows, width));
    const auto call = op.make({rows, width, at::kDouble, device::test_device()});
    if (!call.has_backward()) return;
    const auto leaves = leaves_of(call.inputs);
    const auto outputs = call.forward(leaves), upstream = upstream_of(outputs), grads = gradients_of(outputs, leaves);
    size_t next = 0;
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (!leaves[i].requires_grad()) continue;
      const auto direction = random_like(leaves[i], 50 + static_cast<int64_t>(i));
      constexpr double kStep = 1e-5;
      const auto loss_at = [&](double step) {
        TensorList moved;
        for (const auto& x : leaves) moved.push_back(x.detach());
        moved[i] = moved[i] + step * direction;
        return dot(call.forward(moved), upstream);
      };
      const double difference = (loss_at(kStep) - loss_at(-kStep)) / (2 * kStep),
                   gradient = (grads[next++] * direction).sum().item<double>();
      EXPECT_NEAR(gradient, difference, 1e-6 * (std::abs(difference) + 1)) << "input " << i;
    }
  }
}

// FLOPs, bytes, scratch and saved tensors are those of the trace, and each kernel of it is looked up under the operator's own size.
TEST_P(OperatorTest, costs_what_it_states) {
  const auto& op = *GetParam();
  if (!op.cost) GTEST_SKIP() << "a composition: its trace is its cost";
  for (const auto dtype : kDtypes)
    for (const auto& [rows, width] : op.checked) {
      SCOPED_TRACE(fmt::format("{}x{} {}", rows, width, c10::toString(dtype)));
      const auto counted = count(op, {rows, width}, dtype, Target::cpu);
      const auto stated = op.cost({rows, width, dtype, at::kCPU});
      expect_same(counted.cost.forward, stated.forward, "forward");
      expect_same(counted.cost.backward, stated.backward, "backward");
      EXPECT_EQ(counted.cost.saved_bytes, stated.saved_bytes) << "saved";
      for (const auto* operation : counted.fused) {
        const auto name = counted.trace.name_of(*operation);
        const auto size = measured_size({op}, name, counted.trace.inputs_of(*operation), counted.trace.outputs_of(*operation));
        EXPECT_EQ(size.has_value(), op.measured != nullptr) << name;
        EXPECT_EQ(size ? Size(size->rows, size->width) : Size(rows, width), Size(rows, width)) << name;
      }
    }
}

TEST_P(OperatorTest, is_fused_where_it_says_and_a_composition_elsewhere) {
  const auto& op = *GetParam();
  const auto size = op.checked.empty() ? op.measured(true).front() : op.checked.back();
  for (const auto target : {Target::cpu, Target::gpu}) {
    const bool is_stated = std::find(op.fused_on.begin(), op.fused_on.end(), target) != op.fused_on.end();
    EXPECT_EQ(!count(op, size, at::kBFloat16, target).fused.empty(), is_stated) << (target == Target::cpu ? "CPU" : "GPU");
  }
}

}  // namespace ingot::kernels
