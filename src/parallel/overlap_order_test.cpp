// What can travel under the computation does, by order: on one rank of several, alone on a counting device, the trace says which operations
// come between a start and its wait. No clock is read. overlap_test.cpp measures the same over a slow wire, at night.
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "comm/recording_fabric.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "kernels/activation.h"
#include "kernels/differentiable.h"
#include "kernels/linear_attention.h"
#include "layers/attention.h"
#include "layers/linear.h"
#include "layers/softmax_attention.h"
#include "parallel/context/linear_attention.h"
#include "parallel/tensor_sequence/folded_layer.h"
#include "parallel/tensor_sequence/schedule.h"

namespace ingot::parallel {
namespace {

using namespace layers;

using device::CountingDevice;
using device::Target;
using device::Trace;

constexpr int kRanks = 4, kRank = 1;  // somebody is before it, and behind it

double flops_between(const Trace& trace, int64_t from, int64_t to) {
  double flops = 0;
  for (const auto& o : trace.operations)
    if (o.position > from && o.position < to) flops += o.flops;
  return flops;
}
double flops_under(const Trace& trace, const Trace::Communication& c) { return flops_between(trace, c.start, c.wait); }

struct Passes {
  Trace forward, backward;
};

// ---- linear attention over ranks, LASP-2 ----

struct LinearCase {
  std::string variant;
  Target target;
  at::ScalarType dtype;
};

std::string title(const testing::TestParamInfo<LinearCase>& info) {
  return info.param.variant + (info.param.target == Target::gpu ? "_gpu_" : "_cpu_") + at::toString(info.param.dtype);
}

constexpr int64_t kTokens = 256, kHeads = 2, kKey = 16, kValue = 32;

kernels::LinearAttentionInputs inputs_of(const LinearCase& c, const at::TensorOptions& options) {
  const auto wide = options.dtype(at::kFloat);
  kernels::LinearAttentionInputs in{at::empty({1, kTokens, kHeads, kKey}, options), at::empty({1, kTokens, kHeads, kKey}, options),
                                    at::empty({1, kTokens, kHeads, kValue}, options)};
  if (c.variant == "retention") in.log_gate = at::empty({kHeads}, wide);
  if (c.variant == "scalar_gate") in.log_gate = at::empty({1, kTokens, kHeads}, wide);
  if (c.variant == "diagonal_gate") in.log_gate = at::empty({1, kTokens, kHeads, kKey}, wide);
  for (auto* x : {&in.q, &in.k, &in.v}) x->set_requires_grad(true);
  if (in.log_gate.defined() && in.log_gate.dim() > 1) in.log_gate.set_requires_grad(true);
  return in;
}

Passes passes_of(const LinearCase& c) {
  const CountingDevice counting(c.target);
  const auto world = comm::recorded_world(kRank, kRanks);
  const ContextAxis axis{{.rank = kRank, .size = kRanks, .zigzag = false}, &world->everyone()};
  const Sequences sequences(1, kTokens, at::Tensor(), 0, counting.device(), axis.schedule());
  const auto in = inputs_of(c, at::TensorOptions().device(counting.device()).dtype(c.dtype));
  Passes passes;
  at::Tensor out;
  {
    device::Tracer tracer(counting.device());
    out = sharded_linear_attention(in, sequences, axis);
    passes.forward = tracer.finish();
  }
  device::Tracer tracer(counting.device());
  kernels::backward({out}, {at::empty_like(out)});
  passes.backward = tracer.finish();
  return passes;
}

class LinearOverlap : public testing::TestWithParam<LinearCase> {};

// The intra-chunk part, which the state before these tokens does not touch, is all there while states travel.
TEST_P(LinearOverlap, forward_works_on_its_own_tokens_while_states_travel) {
  const auto& trace = passes_of(GetParam()).forward;
  ASSERT_EQ(trace.communications.size(), 1U);
  const auto& gather = trace.communications[0];
  EXPECT_EQ(gather.kind, "all_gather");
  const double under = flops_under(trace, gather), before = flops_between(trace, -1, gather.start);
  EXPECT_GE(under, 4.0 * kTokens * kHeads * kKey * kValue);  // reads of the chunks' states, and what they add to them
  EXPECT_GT(before, 0);                                      // the state that is sent
  EXPECT_LT(flops_between(trace, gather.wait, Trace::kNever), under);
}

// So is the backward pass of that part, and what the state before these tokens gives the queries: dq needs the forward pass's state alone.
TEST_P(LinearOverlap, backward_does_all_but_the_state_behind_while_gradients_travel) {
  const auto passes = passes_of(GetParam());
  const auto& trace = passes.backward;
  ASSERT_EQ(trace.communications.size(), 1U);
  const auto& gather = trace.communications[0];
  const double gemm = 2.0 * kTokens * kHeads * kKey * kValue;
  // After the wait: dv and dk of the state behind, two GEMMs; no third, which would be dq.
  const double after = flops_between(trace, gather.wait, Trace::kNever);
  EXPECT_GE(after, 2 * gemm);
  EXPECT_LT(after, 3 * gemm);
  EXPECT_GT(flops_under(trace, gather), 4 * gemm);
  // Before the start the gradient that is sent, and no map of the run.
  EXPECT_LT(flops_between(trace, -1, gather.start), 2 * gemm);
}

std::vector<LinearCase> linear_cases() {
  std::vector<LinearCase> all;
  for (const auto* variant : {"basic", "retention", "scalar_gate", "diagonal_gate"})
    for (const auto target : {Target::gpu, Target::cpu})
      for (const auto dtype : {at::kFloat, at::kBFloat16}) all.push_back({variant, target, dtype});
  return all;
}

INSTANTIATE_TEST_SUITE_P(, LinearOverlap, testing::ValuesIn(linear_cases()), title);

// LASP-1 passes its state on with the transition of the forward pass: nothing is computed for it again.
TEST(LinearOverlapOfChains, backward_does_not_make_the_map_again) {
  for (const auto states : {&kLasp1, &kLasp2}) {
    const CountingDevice counting(Target::cpu);
    const auto world = comm::recorded_world(kRank, kRanks);
    const ContextAxis axis{{.rank = kRank, .size = kRanks, .zigzag = false}, &world->everyone(), &kRing, states};
    const Sequences sequences(1, kTokens, at::Tensor(), 0, counting.device(), axis.schedule());
    const auto in = inputs_of({"scalar_gate", Target::cpu, at::kFloat}, at::TensorOptions().device(counting.device()).dtype(at::kFloat));
    const auto out = sharded_linear_attention(in, sequences, axis);
    device::Tracer tracer(counting.device());
    kernels::backward({out}, {at::empty_like(out)});
    const auto trace = tracer.finish();
    for (const auto& o : trace.operations) EXPECT_NE(trace.name_of(o), "linear_attention_state");
  }
}

// ---- softmax attention over ranks ----

// Keys and values travel while those that are here are attended to; of a gather in groups of heads the first is waited for.
TEST(AttentionOverlap, keys_travel_while_those_that_are_here_are_attended_to) {
  const at::NoGradGuard no_grad;
  for (const auto method : {&kRing, &kAllGather}) {
    const CountingDevice counting(Target::gpu);
    const auto world = comm::recorded_world(kRank, kRanks);
    const ContextAxis axis{{.rank = kRank, .size = kRanks}, &world->everyone(), method};
    Sequences sequences(1, 64, at::Tensor(), 0, counting.device(), axis.schedule());
    const auto x = at::empty({1, 64, 4, 16}, at::TensorOptions().device(counting.device()));
    device::Tracer tracer(counting.device());
    attention(x, x, x, 1, 0, sequences, {});
    const auto trace = tracer.finish();
    const bool is_ring = method == &kRing;
    int shown = 0;
    for (const auto& c : trace.communications) shown += flops_under(trace, c) == 0 ? 1 : 0;
    EXPECT_GT(trace.communications.size(), 1U);
    EXPECT_EQ(shown, is_ring ? 0 : 1);
  }
}

// ---- TSP ----

Passes folded_mlp() {
  const CountingDevice counting(Target::gpu);
  const auto world = comm::recorded_world(kRank, kRanks);
  const TensorSequenceAxis axis{.rank = kRank, .size = kRanks, .group = &world->everyone()};
  const auto options = at::TensorOptions().device(counting.device());
  Parameter gate, up, down;
  for (auto* p : {&gate, &up, &down}) {
    p->shape = p == &down ? tensor::Shape{64, 48} : tensor::Shape{48, 64};
    p->value = at::empty(p->shape, options).set_requires_grad(true);
  }
  auto x = at::empty({1, 32, 64}, options).set_requires_grad(true);
  Passes passes;
  at::Tensor out;
  {
    device::Tracer tracer(counting.device());
    out = folded_layer(x,
                       {{&gate, &up},
                        &down,
                        [](const at::Tensor& in, const ShardOfWeights& w) {
                          return kernels::glu(linear(in, {w[0], w[1]}));
                        }},
                       axis);
    passes.forward = tracer.finish();
  }
  device::Tracer tracer(counting.device());
  kernels::backward({out}, {at::empty_like(out)});
  passes.backward = tracer.finish();
  return passes;
}

// A rank works with one part of the weights while the next is on its way; the last part is all there is after the last wait.
TEST(TspOverlap, a_hop_of_an_mlp_travels_under_the_gemms_with_the_part_that_is_here) {
  const auto passes = folded_mlp();
  const auto& forward = passes.forward;
  const double part = forward.flops() / kRanks;
  ASSERT_EQ(forward.communications.size(), 2U * (kRanks - 1));  // each hop is a send and a receive
  for (const auto& message : forward.communications) EXPECT_EQ(flops_under(forward, message), part);
  // Backward, weights as before, and their gradients under the GEMMs with the part that comes next.
  const auto& backward = passes.backward;
  ASSERT_EQ(backward.communications.size(), 4U * (kRanks - 1));
  size_t hidden = 0;
  for (const auto& message : backward.communications) hidden += flops_under(backward, message) >= backward.flops() / kRanks * 0.99 ? 1 : 0;
  EXPECT_EQ(hidden, backward.communications.size() - 2);  // the last hop of the sums is waited for
}

// Weights and keys of the next heads travel while those that are here are attended to; the first of each is waited for.
TEST(TspOverlap, weights_and_keys_travel_under_attention) {
  const at::NoGradGuard no_grad;
  const int64_t tokens = 64, hidden = 32, heads = 8, dim = 16, width = heads * dim / kRanks;
  const CountingDevice counting(Target::gpu);
  const auto world = comm::recorded_world(kRank, kRanks);
  const TensorSequenceAxis axis{.rank = kRank, .size = kRanks, .group = &world->everyone()};
  const ContextAxis spread{{.rank = kRank, .size = kRanks}, &world->everyone()};
  const auto options = at::TensorOptions().device(counting.device());
  Parameter q, k, v, o;
  for (auto* weight : {&q, &k, &v}) weight->value = at::empty({width, hidden}, options);
  o.value = at::empty({hidden, width}, options);
  const auto x = at::empty({1, tokens, hidden}, options);
  Sequences sequences(1, tokens, at::Tensor(), 0, counting.device(), spread.schedule());
  device::Tracer tracer(counting.device());
  const SoftmaxAttention attention({heads, heads, dim, 0, RotarySettings{.rotated = dim}, &q, &k, &v, &o});
  TensorSequenceSchedule(axis, spread).run(attention, x, sequences, {});
  const auto trace = tracer.finish();
  int weights = 0, keys = 0, hidden_weights = 0, hidden_keys = 0;
  for (const auto& c : trace.communications) {
    const bool is_hidden = flops_under(trace, c) > 0;
    if (c.kind == "broadcast") ++weights, hidden_weights += is_hidden;
    if (c.kind == "all_gather") ++keys, hidden_keys += is_hidden;
  }
  EXPECT_EQ(weights, kRanks);
  EXPECT_EQ(hidden_weights, kRanks - 1);
  EXPECT_EQ(keys, kRanks);
  EXPECT_EQ(hidden_keys, kRanks - 1);
}

}  // namespace
}  // namespace ingot::parallel
