#include "device/trace.h"

#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/work_scope.h"
#include "device/tracer.h"
#include "device/virtual_device.h"

namespace ingot::device {
namespace {

at::TensorOptions on(at::Device device) { return at::TensorOptions().device(device); }

std::vector<std::string> names_of(const Trace& trace) {
  std::vector<std::string> names;
  for (const auto& o : trace.operations) names.emplace_back(trace.name_of(o));
  return names;
}

const Trace::Operation& only(const Trace& trace, const std::string& name) {
  const auto is_it = [&](const Trace::Operation& o) { return trace.name_of(o) == name; };
  EXPECT_EQ(std::count_if(trace.operations.begin(), trace.operations.end(), is_it), 1) << name;
  return *std::find_if(trace.operations.begin(), trace.operations.end(), is_it);
}

TEST(Trace, has_operations_with_shapes_bytes_and_flops) {
  const CountingDevice counting;
  Tracer tracer(counting.device());
  const auto a = at::empty({3, 4}, on(counting.device())), b = at::empty({4, 5}, on(counting.device()));
  auto c = at::mm(a, b);
  c.mul_(2).view({15}).t();
  const auto trace = tracer.finish();
  EXPECT_EQ(names_of(trace), (std::vector<std::string>{"aten::mm", "aten::mul"}));  // one name for each variant, and no views
  const auto& mm = only(trace, "aten::mm");
  EXPECT_EQ(mm.flops, 2 * 3 * 4 * 5);
  EXPECT_EQ(mm.read_bytes, 4 * (12 + 20));
  EXPECT_EQ(mm.written_bytes, 4 * 15);
  EXPECT_EQ(trace.inputs_of(mm)[1].sizes, (std::vector<int64_t>{4, 5}));
  EXPECT_EQ(trace.outputs_of(mm)[0].sizes, (std::vector<int64_t>{3, 5}));
  EXPECT_EQ(trace.outputs_of(mm)[0].dtype, at::kFloat);
}

TEST(Trace, says_which_stream_works_and_waits_for_which) {
  const CountingDevice counting;
  const c10::impl::VirtualGuardImpl guard(counting.device().type());
  Tracer tracer(counting.device());
  auto x = at::zeros({6, 6}, on(counting.device()));
  const auto main = guard.getStream(counting.device()), side = guard.getStreamFromGlobalPool(counting.device());
  c10::Event end(counting.device().type());
  {
    const c10::StreamGuard as_current(side);
    x.mul_(2);
    end.record(side);
  }
  end.block(main);
  x.add_(1);
  const auto trace = tracer.finish();
  const auto &mul = only(trace, "aten::mul"), &add = only(trace, "aten::add");
  EXPECT_EQ(mul.stream, side.id());
  EXPECT_EQ(add.stream, 0);
  ASSERT_EQ(trace.stream_waits.size(), 1u);
  const auto& wait = trace.stream_waits[0];
  EXPECT_EQ(wait.stream, 0);
  EXPECT_EQ(wait.other, side.id());
  EXPECT_GT(wait.until, mul.position);
  EXPECT_LT(wait.position, add.position);
}

TEST(Trace, is_the_same_on_the_emulated_and_the_counting_device) {
  const CountingDevice counting;
  std::vector<std::vector<std::string>> names;
  for (const auto device : {emulated_device(0), counting.device()}) {
    Tracer tracer(device);
    auto x = at::zeros({6, 6}, on(device)).requires_grad_(true);
    at::silu(at::mm(x, x)).softmax(-1).sum().backward();
    names.push_back(names_of(tracer.finish()));
  }
  EXPECT_EQ(names[0], names[1]);
}

TEST(Trace, puts_a_backward_pass_into_the_scope_of_its_forward_pass) {
  const CountingDevice counting;
  Tracer tracer(counting.device());
  auto x = at::zeros({6, 6}, on(counting.device())).requires_grad_(true);
  at::Tensor loss;
  {
    const base::WorkScope outer("layer 0");
    {
      const base::WorkScope scope("attention", base::WorkKind::attention);
      loss = at::sigmoid(x);
    }
    const base::WorkScope scope("mlp");
    loss = at::tanh(loss).sum();
  }
  loss.backward();
  const auto trace = tracer.finish();
  EXPECT_EQ(trace.path_of(only(trace, "aten::sigmoid").scope), "layer 0/attention");
  EXPECT_EQ(trace.path_of(only(trace, "aten::tanh").scope), "layer 0/mlp");
  const auto& back = only(trace, "aten::sigmoid_backward");
  EXPECT_EQ(trace.path_of(back.scope), "layer 0/attention/backward");
  EXPECT_TRUE(trace.is_backward(back.scope));
  EXPECT_EQ(trace.path_of(only(trace, "aten::tanh_backward").scope), "layer 0/mlp/backward");
  EXPECT_GE(trace.enclosing(back.scope, "layer 0"), 0);
  EXPECT_EQ(trace.enclosing(back.scope, "mlp"), -1);
  EXPECT_EQ(trace.scopes[static_cast<size_t>(trace.enclosing(back.scope, "attention"))].work.kind, base::WorkKind::attention);
  EXPECT_EQ(trace.scopes[static_cast<size_t>(trace.enclosing(back.scope, "layer 0"))].work.rule, base::Work::Rule::passes);
}

TEST(Trace, says_what_lives_at_the_peak) {
  const CountingDevice counting;
  const auto before = at::empty({10}, on(counting.device()));
  Tracer tracer(counting.device());
  {
    const base::WorkScope scope("large");
    const auto x = at::empty({1000}, on(counting.device()));
  }
  const auto y = at::empty({100}, on(counting.device()));
  const auto trace = tracer.finish();
  EXPECT_EQ(trace.peak_bytes, 4040);
  EXPECT_EQ(trace.before_bytes, 40);
  const auto alive = trace.alive_at(trace.peak_position);
  ASSERT_EQ(alive.size(), 1U);
  EXPECT_EQ(trace.path_of(trace.allocations[alive[0]].scope), "large");
  EXPECT_EQ(trace.alive_at(trace.positions).size(), 1U);
}

TEST(Trace, has_every_wait_of_the_host) {
  const CountingDevice counting;
  Tracer tracer(counting.device());
  const auto x = at::zeros({6}, on(counting.device()));
  static_cast<void>(x.sum().item<float>());
  static_cast<void>(x.cpu());
  static_cast<void>(at::ones({3}).to(counting.device()));
  static_cast<void>(at::ones({3}).to(counting.device(), /*non_blocking=*/true));
  const auto trace = tracer.finish();
  EXPECT_EQ(trace.waits(), 3);
  EXPECT_EQ(trace.host_accesses.size(), 4U);
}

TEST(Trace, has_a_kernel_of_our_own_under_its_name) {
  const CountingDevice counting(Target::cpu);
  Tracer tracer(counting.device());
  const auto x = at::empty({6}, on(counting.device()));
  EXPECT_TRUE(counted("rms_norm", {x, {}}, {x}, 12));
  const auto trace = tracer.finish();
  EXPECT_EQ(only(trace, "rms_norm").flops, 12);
  EXPECT_EQ(only(trace, "rms_norm").inputs, 1);
}

TEST(Trace, leaves_out_operations_that_nobody_wants) {
  const CountingDevice counting;
  Tracer tracer(counting.device());
  tracer.record_operations(false);
  const auto x = at::zeros({6}, on(counting.device()));
  const auto from = tracer.position();
  tracer.record_operations(true);
  x.clone().add_(1);
  const auto trace = tracer.finish();
  EXPECT_EQ(names_of(trace), (std::vector<std::string>{"aten::copy", "aten::add"}));
  EXPECT_GE(trace.operations.front().position, from);
}

TEST(Trace, one_tracer_at_a_time_is_on_a_device) {
  const CountingDevice counting;
  const Tracer tracer(counting.device());
  EXPECT_THROW(Tracer(counting.device()), std::exception);
}

TEST(Trace, communication_has_a_start_and_a_wait) {
  const CountingDevice counting;
  Tracer tracer(counting.device());
  CommunicationRecord record(counting.device(), {.kind = "all_reduce", .axis = "data", .ranks = 4, .bytes = 8});
  at::zeros({6}, on(counting.device()));
  record.waited();
  const auto trace = tracer.finish();
  ASSERT_EQ(trace.communications.size(), 1U);
  EXPECT_LT(trace.communications[0].start, trace.operations[0].position);
  EXPECT_GT(trace.communications[0].wait, trace.operations[0].position);
}

}  // namespace
}  // namespace ingot::device
