// Linear attention whose tokens are spread over ranks against the same on one: outputs and all gradients of every variant and method, with
// documents cut inside, at and across the borders; traffic to the byte; and what must hold whatever the numbers. Ranks are threads.
#include "parallel/context/linear_attention.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "comm/world.h"
#include "kernels/differentiable.h"
#include "layers/test_tensors.h"

namespace ingot::parallel {
namespace {

using kernels::TensorList;
using namespace layers;
using States = const StateMethod*;
constexpr int64_t kBatch = 2, kHeads = 3, kKey = 4, kValue = 6;
constexpr const char* kVariants[] = {"basic", "retention", "scalar_gate", "diagonal_gate", "delta", "gated_delta", "kda"};

struct Case {
  std::string variant;
  States states = &kLasp2;
  int ranks = 2;
  int64_t seq = 24;
  bool documents = false;
  at::ScalarType dtype = at::kDouble;
  int64_t graded = -1;  // so many outputs have a gradient; -1: all
};

std::string title(const testing::TestParamInfo<Case>& info) {
  const auto& c = info.param;
  return fmt::format("{}_{}_ranks{}_seq{}{}_{}", c.variant, c.states->name(), c.ranks, c.seq, c.documents ? "_documents" : "",
                     at::toString(c.dtype));
}

// Borders inside runs, at their edges, and in the second row a document over three of four ranks.
at::Tensor documents_of(int64_t seq) {
  auto starts = at::zeros({kBatch, seq}, at::kInt);
  auto at = starts.accessor<int32_t, 2>();
  const std::vector<std::vector<int64_t>> borders = {{1, seq / 4 - 1, seq / 2, seq * 3 / 4 + 1}, {2, seq - 2}};
  for (int64_t b = 0; b < kBatch; ++b)
    for (const int64_t border : borders[static_cast<size_t>(b)])
      for (int64_t i = border; i < seq; ++i) at[b][i] = static_cast<int32_t>(border);
  return starts;
}

// Whole rows: q, k, v, log_gate, beta; undefined where the variant has none.
TensorList whole_inputs(const Case& c, double strongest = 1) {
  TensorList all = {random({kBatch, c.seq, kHeads, kKey}, 1),
                    random({kBatch, c.seq, kHeads, kKey}, 2) * 0.4,
                    random({kBatch, c.seq, kHeads, kValue}, 3),
                    {},
                    {}};
  const auto gate = [&](at::IntArrayRef sizes) { return random(sizes, 4).abs().neg() * strongest; };
  if (c.variant == "retention") all[3] = gate({kHeads}) * 0.1;
  if (c.variant == "scalar_gate" || c.variant == "gated_delta") all[3] = gate({kBatch, c.seq, kHeads});
  if (c.variant == "diagonal_gate" || c.variant == "kda") all[3] = gate({kBatch, c.seq, kHeads, kKey});
  if (c.variant == "delta" || c.variant == "gated_delta" || c.variant == "kda") all[4] = at::sigmoid(random({kBatch, c.seq, kHeads}, 5));
  return all;
}

bool is_spread(const at::Tensor& x) { return x.defined() && x.dim() > 1; }

ContextAxis axis_of(const Case& c, comm::World& world) {
  return {{.rank = world.rank(), .size = c.ranks, .zigzag = false}, &world.everyone(), &kRing, c.states};
}

// Output and gradients of the inputs that have one, of this rank's tokens.
TensorList run(const Case& c, const TensorList& whole, const ContextAxis& axis) {
  TensorList own;
  for (size_t i = 0; i < whole.size(); ++i) {
    auto x = is_spread(whole[i]) ? axis.own_tokens(whole[i]) : whole[i];
    if (x.defined()) x = x.to(i < 3 || c.dtype == at::kDouble ? c.dtype : at::kFloat).to(device::test_device(axis.rank)).clone();
    if (is_spread(x)) x.set_requires_grad(true);
    own.push_back(x);
  }
  const auto device = device::test_device(axis.rank);
  Sequences sequences(kBatch, own[0].size(1), c.documents ? documents_of(c.seq).to(device) : at::Tensor(), 0, device, axis.schedule());
  const auto out = sharded_linear_attention({own[0], own[1], own[2], own[3], own[4]}, sequences, axis);
  auto grad_out = random({kBatch, c.seq, kHeads, kValue}, 6);
  if (c.graded >= 0) grad_out.slice(1, c.graded).zero_();
  kernels::backward({out}, {axis.own_tokens(grad_out).to(out.scalar_type()).to(device)});
  TensorList results = {out.detach().cpu()};
  for (const auto& x : own)
    if (is_spread(x)) results.push_back(x.grad().cpu());
  return results;
}

// The same on one rank in fp64, from what the ranks are given, by the kernels that are tested against the recurrence.
TensorList on_one_rank(const Case& c, TensorList whole) {
  const auto as_given = [&](const at::Tensor& x) { return x.to(c.dtype).to(at::kDouble); };
  for (size_t i = 0; i < 3; ++i) whole[i] = as_given(whole[i]);
  const auto starts = documents_of(c.seq);
  const auto is_start = c.documents ? starts.eq(at::arange(c.seq, at::kInt)) : at::Tensor();
  const kernels::LinearAttentionInputs in{whole[0], whole[1], whole[2], whole[3], whole[4], is_start};
  const auto forward = kernels::linear_attention_forward(in);
  const auto grad_out = as_given(random({kBatch, c.seq, kHeads, kValue}, 6));
  const auto grads = kernels::linear_attention_backward(grad_out, {}, in, {}, forward.saved);
  TensorList results = {forward.out, grads.q, grads.k, grads.v};
  if (is_spread(whole[3])) results.push_back(grads.log_gate);
  if (whole[4].defined()) results.push_back(grads.beta);
  return results;
}

TensorList over_ranks(const Case& c, const TensorList& whole) {
  std::vector<TensorList> by_rank(static_cast<size_t>(c.ranks));
  comm::run_ranks(c.ranks, [&](comm::World& world) { by_rank[static_cast<size_t>(world.rank())] = run(c, whole, axis_of(c, world)); });
  TensorList joined;
  for (size_t i = 0; i < by_rank[0].size(); ++i) {
    TensorList parts;
    for (const auto& rank : by_rank) parts.push_back(rank[i]);
    joined.push_back(device::cat(parts, 1));
  }
  return joined;
}

class ShardedLinear : public ::testing::TestWithParam<Case> {};

TEST_P(ShardedLinear, equals_one_rank) {
  const auto& c = GetParam();
  const auto whole = whole_inputs(c);
  const auto expected = on_one_rank(c, whole), got = over_ranks(c, whole);
  ASSERT_EQ(got.size(), expected.size());
  const double tolerance = c.dtype == at::kDouble ? 1e-12 : c.dtype == at::kFloat ? 1e-5 : 2e-2;
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(error_of(got[i], expected[i]), tolerance) << "tensor " << i;
  const auto again = over_ranks(c, whole);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(got[i], again[i])) << "other bits in tensor " << i;
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const std::string variant : kVariants) {
    for (const auto states : {&kLasp2, &kLasp1, &kZeco}) {
      for (const int ranks : {1, 2, 3, 4}) all.push_back({variant, states, ranks, 24, ranks == 4});
      all.push_back({variant, states, 3, 24, true});
      all.push_back({variant, states, 8, 16, true});
    }
    all.push_back({variant, &kLasp2, 4, 400, true, at::kFloat});
    all.push_back({variant, &kZeco, 2, 300, false, at::kFloat});
  }
  all.push_back({"scalar_gate", &kLasp2, 2, 256, true, at::kBFloat16});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ShardedLinear, ::testing::ValuesIn(cases()), title);

// A rank's own part and that of the states around it were each rounded to bf16 before they were added: many an element was off.
TEST(ShardedLinearAttention, bf16_is_rounded_once) {
  for (const std::string variant : {"basic", "retention", "scalar_gate", "diagonal_gate"}) {
    for (const auto states : {&kLasp2, &kLasp1, &kZeco}) {
      const Case c{variant, states, 4, 64, true, at::kBFloat16};
      const auto whole = whole_inputs(c);
      const auto got = over_ranks(c, whole), expected = on_one_rank(c, whole);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(got[i].scalar_type(), at::kBFloat16);
        const double same = got[i].eq(expected[i].to(at::kBFloat16)).to(at::kDouble).mean().item<double>();
        EXPECT_GT(same, 0.97) << variant << " " << states->name() << ", tensor " << i;
      }
    }
  }
}

// What a token changes lies behind it, to the bit, also across the borders of ranks; and it has no gradient from what lies before it.
TEST(ShardedLinearAttention, is_strictly_causal) {
  for (const std::string variant : kVariants) {
    for (const auto states : {&kLasp2, &kLasp1, &kZeco}) {
      const Case c{variant, states, 4, 32};
      auto whole = whole_inputs(c);
      const auto before = over_ranks(c, whole)[0];
      for (const int64_t changed : {5, 8, 15, 31}) {
        auto other = whole;
        for (size_t i = 0; i < 3; ++i) {
          other[i] = whole[i].clone();
          other[i].select(1, changed).add_(1);
        }
        const auto after = over_ranks(c, other)[0];
        EXPECT_TRUE(at::equal(after.narrow(1, 0, changed), before.narrow(1, 0, changed))) << variant << " " << changed;
        EXPECT_FALSE(at::equal(after.select(1, changed), before.select(1, changed)));
      }
      for (const int64_t graded : {5, 8, 15, 31}) {
        auto part = c;
        part.graded = graded;
        const auto gradients = over_ranks(part, whole);
        for (size_t i = 1; i < 4; ++i) {
          EXPECT_EQ(gradients[i].slice(1, graded).abs().max().item<double>(), 0) << variant << " " << graded << ", tensor " << i;
          EXPECT_GT(gradients[i].select(1, graded - 1).abs().max().item<double>(), 0) << variant << " " << graded << ", tensor " << i;
        }
      }
    }
  }
}

// exp(-20) a token over 16,384 tokens: nothing overflows, nothing is not a number, and what one rank computes comes out.
TEST(ShardedLinearAttention, strong_decay_stays_finite) {
  for (const std::string variant : {"scalar_gate", "diagonal_gate", "gated_delta", "kda"}) {
    const Case c{variant, &kLasp2, 4, 16384, false, at::kFloat};
    auto whole = whole_inputs(c);
    whole[3] = at::full_like(whole[3], -20);
    const auto got = over_ranks(c, whole), expected = on_one_rank(c, whole);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i].isfinite().all().item<bool>()) << variant << " " << i;
      EXPECT_LT(error_of(got[i], expected[i]), 1e-5) << variant << " " << i;
    }
  }
}

TEST(ShardedLinearAttention, sends_one_state_whatever_the_length) {
  using comm::Kind;
  const int64_t state = kBatch * kHeads * kKey * kValue;
  const std::map<std::string, int64_t> gates = {{"basic", 0},           {"retention", 0},    {"scalar_gate", 1}, {"diagonal_gate", kKey},
                                                {"delta", kKey * kKey}, {"kda", kKey * kKey}};
  for (const auto& [variant, extra] : gates) {
    for (const int64_t seq : {16, 64}) {
      for (const auto states : {&kLasp2, &kLasp1, &kZeco}) {
        const Case c{variant, states, 4, seq, true};
        const auto whole = whole_inputs(c);
        comm::run_ranks(c.ranks, [&, extra = extra](comm::World& world) {
          run(c, whole, axis_of(c, world));
          auto seen = world.counters().by_kind();
          EXPECT_EQ(seen.size(), states == &kLasp2 ? 1u : world.rank() == 0 || world.rank() == 3 ? 2u : 2u);
          const int64_t messages = states == &kZeco ? 4 : 1;
          const bool is_end = world.rank() == 0 || world.rank() == 3;
          if (states == &kLasp2) {
            EXPECT_EQ(seen[Kind::all_gather].calls, 2);
            EXPECT_EQ(seen[Kind::all_gather].received_bytes, 3 * 8 * (2 * state + kBatch * kHeads * extra));
          } else {
            EXPECT_EQ(seen[Kind::send].calls, messages * (is_end ? 1 : 2));
            EXPECT_EQ(seen[Kind::send].sent_bytes, 8 * state * (is_end ? 1 : 2));
            EXPECT_EQ(seen[Kind::receive].received_bytes, 8 * state * (is_end ? 1 : 2));
          }
        });
      }
    }
  }
}

TEST(ShardedLinearAttention, refuses_a_zigzag_order) {
  comm::run_ranks(2, [](comm::World& world) {
    ContextAxis axis{{.rank = world.rank(), .size = 2, .zigzag = true}, &world.everyone()};
    Sequences sequences(1, 4, {}, 0, at::kCPU, axis.schedule());
    const auto x = at::zeros({1, 4, 1, 2});
    EXPECT_THROW(sharded_linear_attention({x, x, x}, sequences, axis), base::ConfigError);
    EXPECT_THROW(sharded_bidirectional_linear_attention(x, x, x, sequences, axis), base::ConfigError);
  });
}

TEST(ShardedLinearAttention, without_a_mask_takes_full_sums) {
  const Case c{"basic", &kLasp2, 4, 24};
  const auto whole = whole_inputs(c);
  TensorList leaves, expected;
  for (size_t i = 0; i < 3; ++i) leaves.push_back(whole[i].clone().set_requires_grad(true));
  const auto grad = random({kBatch, c.seq, kHeads, kValue}, 6);
  const auto out = at::einsum("bshd,bthd,bthe->bshe", {leaves[0], leaves[1], leaves[2]});
  kernels::backward({out}, {grad});
  expected = {out.detach(), leaves[0].grad(), leaves[1].grad(), leaves[2].grad()};
  std::vector<TensorList> by_rank(4);
  comm::run_ranks(4, [&](comm::World& world) {
    const auto axis = axis_of(c, world);
    TensorList own;
    const auto device = device::test_device(world.rank());
    for (size_t i = 0; i < 3; ++i) own.push_back(axis.own_tokens(whole[i]).to(device).clone().set_requires_grad(true));
    Sequences sequences(kBatch, own[0].size(1), {}, 0, device, axis.schedule());
    const auto part = sharded_bidirectional_linear_attention(own[0], own[1], own[2], sequences, axis);
    kernels::backward({part}, {axis.own_tokens(grad).to(device)});
    by_rank[static_cast<size_t>(world.rank())] = {part.detach().cpu(), own[0].grad().cpu(), own[1].grad().cpu(), own[2].grad().cpu()};
    EXPECT_EQ(world.counters().by_kind()[comm::Kind::all_gather].calls, 2);
  });
  for (size_t i = 0; i < 4; ++i) {
    TensorList parts;
    for (const auto& rank : by_rank) parts.push_back(rank[i]);
    EXPECT_LT(error_of(device::cat(parts, 1), expected[i]), 1e-12) << i;
  }
}

}  // namespace
}  // namespace ingot::parallel
