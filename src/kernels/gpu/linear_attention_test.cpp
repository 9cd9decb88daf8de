// Linear attention on a GPU, run by the host thread by thread, against the recurrence token by token in fp64 and autograd through it.
#include "kernels/gpu/linear_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/test_night.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "kernels/cpu/linear_attention.h"
#include "kernels/differentiable.h"
#include "kernels/gpu/host_kernels.h"

namespace ingot::kernels::gpu {
namespace {

enum class Gates { none, of_heads, of_tokens, of_channels };

struct Case {
  Gates gates;
  bool is_packed, has_states;
  int64_t seq, key_dim, value_dim, parts = 1, batch = 1, heads = 2;
  bool has_beta = false;
};

struct Inputs {
  LinearAttentionInputs in;
  at::Tensor initial_state, grad_out, grad_final_state;
};

at::Tensor starts(int64_t batch, int64_t seq) {
  auto starts = at::zeros({batch, seq}, at::kBool);
  for (int64_t b = 0; b < batch; ++b)
    for (const int64_t t : {int64_t{0} + 2 * b, int64_t{1}, seq / 3, seq / 3 + 5, 2 * seq / 3 + b, int64_t{64}})
      if (t < seq) starts[b][t] = true;
  return starts;
}

Inputs inputs(const Case& c) {
  at::manual_seed(c.seq + c.key_dim);
  const auto random = [&](int64_t dim) { return at::randn({c.batch, c.seq, c.heads, dim}, at::kBFloat16); };
  Inputs i{{random(c.key_dim), random(c.key_dim) / std::sqrt(static_cast<double>(c.key_dim)), random(c.value_dim)}};
  if (c.gates == Gates::of_heads) i.in.log_gate = -at::exp2(-at::arange(1, c.heads + 1, at::kFloat));
  if (c.gates == Gates::of_tokens) i.in.log_gate = at::log_sigmoid(at::randn({c.batch, c.seq, c.heads}) + 1);
  if (c.gates == Gates::of_channels) i.in.log_gate = at::log_sigmoid(at::randn({c.batch, c.seq, c.heads, c.key_dim}) + 1);
  if (c.has_beta) {
    i.in.k = (i.in.k / i.in.k.norm(2, -1, true)).to(at::kBFloat16);
    i.in.beta = at::sigmoid(at::randn({c.batch, c.seq, c.heads}));
    i.in.beta.select(1, c.seq / 2).zero_();  // what writes nothing has a gradient
  }
  if (c.is_packed) i.in.is_start = starts(c.batch, c.seq);
  i.grad_out = random(c.value_dim);
  if (c.has_states) {
    i.initial_state = at::randn({c.batch, c.heads, c.key_dim, c.value_dim});
    i.grad_final_state = at::randn(i.initial_state.sizes());
  }
  return i;
}

const char* const kNames[] = {"out", "final_state", "grad_q", "grad_k", "grad_v", "grad_log_gate", "grad_beta", "grad_initial_state"};
using Results = std::vector<at::Tensor>;  // in the order of kNames; some undefined

Results results(const LinearAttentionOutput& f, const LinearAttentionGradients& g, const Inputs& i) {
  return {f.out, f.final_state, g.q, g.k, g.v, g.log_gate, g.beta, i.initial_state.defined() ? g.initial_state : at::Tensor()};
}

Results run(const Inputs& i, int64_t parts, const HostKernels& kernels, uint64_t seed) {
  const auto f = linear_attention_forward(i.in, i.initial_state, parts, [&](const auto& p) { kernels.linear_attention_forward(p, seed); });
  const auto g = linear_attention_backward(i.grad_out, i.grad_final_state, i.in, f.saved,
                                           [&](const auto& p) { kernels.linear_attention_backward(p, seed); });
  return results(f, g, i);
}

Results oracle(const Inputs& i) {
  const auto leaf = [](const at::Tensor& x) { return x.defined() ? x.to(at::kDouble).detach().clone().requires_grad_() : x; };
  const LinearAttentionInputs in{leaf(i.in.q), leaf(i.in.k), leaf(i.in.v), leaf(i.in.log_gate), leaf(i.in.beta), i.in.is_start};
  const auto state = leaf(i.initial_state);
  const auto f = reference::linear_attention_recurrence(in, state);
  auto loss = (f.out * i.grad_out.to(at::kDouble)).sum();
  if (i.grad_final_state.defined()) loss = loss + (f.final_state * i.grad_final_state.to(at::kDouble)).sum();
  backward({loss});
  Results all = {f.out.detach(), f.final_state.detach()};
  for (const auto& x : {in.q, in.k, in.v, in.log_gate, in.beta, state})
    all.push_back(!x.defined() || x.dim() == 1 ? at::Tensor() : x.grad().defined() ? x.grad() : at::zeros_like(x));
  return all;
}

double error_of(const at::Tensor& found, const at::Tensor& expected) {
  return ((found.to(at::kDouble) - expected).norm() / expected.norm().clamp_min(1e-30)).item<double>();
}

void expect_close(const Results& found, const Results& expected) {
  constexpr double kTolerance = 6e-3;  // states, scores and decayed keys are rounded to bf16
  for (size_t n = 0; n < expected.size(); ++n) {
    ASSERT_EQ(found[n].defined(), expected[n].defined()) << kNames[n];
    if (!found[n].defined()) continue;
    ASSERT_EQ(found[n].sizes(), expected[n].sizes()) << kNames[n];
    EXPECT_LT(error_of(found[n], expected[n]), kTolerance) << kNames[n];
  }
}

class GpuLinearAttentionCases : public testing::TestWithParam<Case> {};

TEST_P(GpuLinearAttentionCases, follows_the_recurrence_forward_and_backward) {
  const auto& c = GetParam();
  const auto i = inputs(c);
  const auto expected = oracle(i);
  // By day the threads of one chunk of one row run in two orders, those of more in one for each width of waves.
  const bool is_thorough = (c.seq <= 64 && c.batch == 1) || base::tests_run_at_night();
  for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64}) {
    Results first;
    for (const uint64_t seed : {0, 1}) {
      if (!is_thorough && (seed == 1) != (kernels == &host_kernels_wave64)) continue;
      SCOPED_TRACE(testing::Message() << (kernels == &host_kernels_wave32 ? "waves of 32" : "waves of 64") << " seed " << seed);
      const auto found = run(i, c.parts, *kernels, seed);
      expect_close(found, expected);
      for (size_t n = 0; n < first.size(); ++n) EXPECT_TRUE(!first[n].defined() || at::equal(found[n], first[n])) << kNames[n];
      first = found;
    }
  }
}

std::string title(const testing::TestParamInfo<Case>& info) {
  constexpr const char* kGates[] = {"plain", "gate_of_heads", "gate_of_tokens", "gate_of_channels"};
  const auto& c = info.param;
  return fmt::format("{}{}{}{}_{}_of_{}x{}_{}", c.has_beta ? "delta_rule_" : "", kGates[static_cast<int>(c.gates)],
                     c.is_packed ? "_packed" : "", c.has_states ? "_with_states" : "", c.seq, c.key_dim, c.value_dim, c.parts);
}

// Less than a chunk, whole chunks, several parts, dims that fill no tile of a state.
INSTANTIATE_TEST_SUITE_P(
    Variants, GpuLinearAttentionCases,
    testing::Values(Case{Gates::none, false, false, 1, 32, 32}, Case{Gates::none, false, true, 77, 64, 32},
                    Case{Gates::none, false, true, 200, 32, 80, 3}, Case{Gates::none, true, true, 150, 48, 64, 2, 2, 1},
                    Case{Gates::of_heads, false, true, 128, 64, 64, 2}, Case{Gates::of_heads, true, false, 130, 32, 32},
                    Case{Gates::of_tokens, false, false, 64, 64, 64}, Case{Gates::of_tokens, false, true, 65, 80, 96, 2, 1, 1},
                    Case{Gates::of_tokens, true, true, 321, 32, 48, 4}, Case{Gates::of_tokens, true, true, 40, 32, 32, 1, 2, 3},
                    Case{Gates::of_tokens, false, true, 70, 144, 64, 1, 1, 1}, Case{Gates::of_channels, false, false, 1, 32, 32},
                    Case{Gates::of_channels, false, false, 64, 64, 64}, Case{Gates::of_channels, false, true, 65, 80, 96, 2, 1, 1},
                    Case{Gates::of_channels, true, true, 321, 32, 48, 4}, Case{Gates::of_channels, true, true, 40, 32, 32, 1, 2, 3},
                    Case{Gates::of_channels, false, true, 70, 144, 64, 1, 1, 1}),
    title);

// Less than a chunk, whole chunks, keys that fill no tile or four of them.
INSTANTIATE_TEST_SUITE_P(
    DeltaRule, GpuLinearAttentionCases,
    testing::Values(
        Case{Gates::none, false, false, 1, 32, 32, 1, 1, 2, true}, Case{Gates::none, false, true, 200, 64, 48, 1, 1, 1, true},
        Case{Gates::none, true, true, 150, 48, 64, 1, 2, 1, true}, Case{Gates::of_heads, true, true, 128, 32, 32, 1, 1, 2, true},
        Case{Gates::of_tokens, false, false, 64, 64, 64, 1, 1, 1, true}, Case{Gates::of_tokens, false, true, 70, 256, 32, 1, 1, 1, true},
        Case{Gates::of_tokens, true, true, 177, 80, 80, 1, 1, 1, true}, Case{Gates::of_tokens, true, true, 40, 32, 32, 1, 2, 3, true},
        Case{Gates::of_channels, false, false, 1, 32, 32, 1, 1, 2, true}, Case{Gates::of_channels, false, false, 64, 64, 64, 1, 1, 1, true},
        Case{Gates::of_channels, false, true, 200, 64, 48, 1, 1, 1, true},
        Case{Gates::of_channels, false, true, 70, 256, 32, 1, 1, 1, true}, Case{Gates::of_channels, true, true, 177, 80, 80, 1, 1, 1, true},
        Case{Gates::of_channels, true, true, 40, 32, 32, 1, 2, 3, true}),
    title);

// Differences of running sums would lose the weak ones' digits; what a start cuts off has no gradient at all.
TEST(GpuLinearAttention, weak_gates_beside_strong_ones_and_starts_keep_their_digits) {
  for (const auto& c :
       {Case{Gates::of_tokens, true, true, 150, 32, 32}, Case{Gates::of_channels, true, true, 150, 32, 32},
        Case{Gates::of_tokens, true, true, 150, 32, 32, 1, 1, 2, true}, Case{Gates::of_channels, true, true, 150, 32, 32, 1, 1, 2, true}}) {
    auto i = inputs(c);
    i.in.log_gate = i.in.log_gate * 1e-3;
    for (const int64_t t : {10, 30, 66, 70, 130}) i.in.log_gate.select(1, t).sub_(3000);
    const auto expected = oracle(i);
    for (const auto* kernels : {&host_kernels_wave32, &host_kernels_wave64}) {
      // By day one width of waves for the delta rule, the other without it.
      if (!base::tests_run_at_night() && c.has_beta != (kernels == &host_kernels_wave32)) continue;
      const auto found = run(i, c.has_beta ? 1 : 2, *kernels, 3);
      expect_close(found, expected);
      EXPECT_EQ(found[5].index({i.in.is_start}).abs().max().item<float>(), 0);
    }
  }
}

TEST(GpuLinearAttention, reads_operands_that_lie_apart_or_begin_between_vectors) {
  auto i = inputs({Gates::none, false, true, 70, 32, 32});
  const auto expected = run(i, 1, host_kernels_wave32, 0);
  const auto together = device::cat({i.in.q, i.in.k, i.in.v}, 3);  // as one projection makes them
  for (const int64_t begin : {0, 1}) {
    auto buffer = at::empty({together.numel() + begin}, together.options());
    const auto all = buffer.narrow(0, begin, together.numel()).view(together.sizes()).copy_(together);
    i.in.q = all.narrow(3, 0, 32), i.in.k = all.narrow(3, 32, 32), i.in.v = all.narrow(3, 64, 32);
    const auto found = run(i, 1, host_kernels_wave32, 0);
    for (size_t n = 0; n < found.size(); ++n) EXPECT_TRUE(!found[n].defined() || at::equal(found[n], expected[n])) << kNames[n];
  }
}

TEST(GpuLinearAttention, on_the_emulated_device_is_what_the_cpu_computes) {
  const auto device = device::emulated_device(0);
  const auto there = [&](const at::Tensor& x) { return x.defined() ? x.to(device) : x; };
  for (const auto& c :
       {Case{Gates::none, true, false, 150, 32, 48}, Case{Gates::of_heads, true, true, 150, 32, 48},
        Case{Gates::of_tokens, true, true, 150, 32, 48}, Case{Gates::of_channels, true, true, 150, 32, 48},
        Case{Gates::none, true, false, 150, 32, 48, 1, 1, 2, true}, Case{Gates::of_tokens, true, true, 150, 32, 48, 1, 1, 2, true},
        Case{Gates::of_channels, true, true, 150, 32, 48, 1, 1, 2, true}}) {
    const auto i = inputs(c);
    const Inputs moved{{there(i.in.q), there(i.in.k), there(i.in.v), there(i.in.log_gate), there(i.in.beta), there(i.in.is_start)},
                       there(i.initial_state),
                       there(i.grad_out),
                       there(i.grad_final_state)};
    ASSERT_TRUE(takes_linear_attention(moved.in));
    const auto on = [](const Inputs& x) {
      const auto f = kernels::linear_attention_forward(x.in, x.initial_state);
      return results(f, kernels::linear_attention_backward(x.grad_out, x.grad_final_state, x.in, x.initial_state, f.saved), x);
    };
    const auto found = on(moved), expected = on(i);
    for (size_t n = 0; n < found.size(); ++n) {
      ASSERT_EQ(found[n].defined(), expected[n].defined()) << kNames[n];
      EXPECT_TRUE(!found[n].defined() || at::equal(found[n].cpu(), expected[n])) << kNames[n];
    }
  }
}

std::vector<std::string> kernels_in(const device::Trace& trace) {
  std::vector<std::string> names;
  for (const auto& operation : trace.operations)
    if (const auto name = trace.name_of(operation); !name.starts_with("aten::")) names.emplace_back(name);
  return names;
}

TEST(GpuLinearAttention, is_counted_with_its_memory) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto x = at::empty({1, 4096, 16, 128}, at::TensorOptions().device(counting.device()).dtype(at::kBFloat16));
  const LinearAttentionInputs in{x, x, x};
  device::Tracer tracer(counting.device());
  const device::PeakSince peak(counting.device());
  const auto f = kernels::linear_attention_forward(in);
  constexpr int64_t kPairs = 16, kChunks = 64, kParts = 4, kState = 128 * 128, kScores = 64 * 64;  // 4 parts of 4 tiles and 16 heads
  EXPECT_EQ(f.saved.size(2), kParts);
  const int64_t out = 2 * x.numel(), states = kPairs * kParts * kState * 4, of_chunks = kPairs * kChunks * (kState + kScores) * 2;
  EXPECT_EQ(peak.bytes(), out + kPairs * kState * 4 + 2 * states + kPairs * kParts * 4 + of_chunks);
  const auto g = kernels::linear_attention_backward(x, {}, in, {}, f.saved);
  EXPECT_EQ(g.q.sizes(), x.sizes());
  const auto trace = tracer.finish();
  EXPECT_THAT(kernels_in(trace), testing::ElementsAre("linear_attention", "linear_attention.backward"));
  EXPECT_TRUE(trace.host_accesses.empty());
}

TEST(GpuLinearAttention, counts_a_gate_per_channel_and_the_delta_rule_by_their_names) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto x = at::empty({1, 4096, 16, 128}, at::TensorOptions().device(counting.device()).dtype(at::kBFloat16));
  const auto by_channel = at::empty(x.sizes(), x.options().dtype(at::kFloat)), by_token = by_channel.select(3, 0).contiguous();
  const std::pair<std::string, LinearAttentionInputs> all[] = {{"linear_attention_channels", {x, x, x, by_channel}},
                                                               {"linear_attention_delta", {x, x, x, by_token, by_token}},
                                                               {"linear_attention_kda", {x, x, x, by_channel, by_token}}};
  for (const auto& [name, in] : all) {
    device::Tracer tracer(counting.device());
    const auto f = kernels::linear_attention_forward(in);
    EXPECT_EQ(f.saved.size(2), in.beta.defined() ? 1 : 4);  // parts
    const auto g = kernels::linear_attention_backward(x, {}, in, {}, f.saved);
    EXPECT_EQ(g.log_gate.sizes(), in.log_gate.sizes());
    EXPECT_EQ(g.beta.defined(), in.beta.defined());
    const auto trace = tracer.finish();
    EXPECT_THAT(kernels_in(trace), testing::ElementsAre(name, name + ".backward"));
    EXPECT_TRUE(trace.host_accesses.empty());
  }
}

TEST(GpuLinearAttention, leaves_other_dtypes_and_sizes_to_atens_operations) {
  const device::CountingDevice counting(device::Target::gpu);
  const auto operand = [&](int64_t dim, at::ScalarType dtype) {
    return at::empty({1, 80, 2, dim}, at::TensorOptions().device(counting.device()).dtype(dtype));
  };
  const auto x = operand(32, at::kBFloat16), by_token = x.select(3, 0).to(at::kFloat);
  EXPECT_TRUE(takes_linear_attention({x, x, x, by_token}));
  EXPECT_TRUE(takes_linear_attention({x, x, x, x.to(at::kFloat)}));            // a gate per channel
  EXPECT_TRUE(takes_linear_attention({x, x, x, by_token, by_token}));          // the delta rule
  EXPECT_TRUE(takes_linear_attention({x, x, x, x.to(at::kFloat), by_token}));  // both
  for (const auto& other : {operand(32, at::kFloat), operand(24, at::kBFloat16), operand(16, at::kBFloat16), operand(272, at::kBFloat16)})
    EXPECT_FALSE(takes_linear_attention({other, other, other}));
  const auto on_host = at::randn({1, 80, 2, 32}).to(at::kBFloat16);
  EXPECT_FALSE(takes_linear_attention({on_host, on_host, on_host}));
}

}  // namespace
}  // namespace ingot::kernels::gpu
