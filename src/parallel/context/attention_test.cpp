// Attention whose tokens are spread over ranks against attention to whole sequences on one: outputs and gradients for all
// methods and orders, with documents that cross the borders, windows, and fewer kv heads than ranks; CCA's halo; traffic to the byte.
// Ranks are threads.
#include "layers/attention.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <mutex>

#include "base/error.h"
#include "base/test_night.h"
#include "comm/world.h"
#include "layers/cca_attention.h"
#include "layers/test_tensors.h"
#include "mesh/config.h"
#include "parallel/context/axis.h"
#include "parallel/context/halo.h"

namespace ingot::parallel {
namespace {

using namespace layers;
using Method = const AttentionMethod*;
constexpr int64_t kBatch = 2, kDim = 8;

struct Case {
  int ranks;
  Method method;
  bool zigzag = true;
  int64_t seq = 24, heads = 4, kv_heads = 2, window = 0;
  bool documents = true;
  at::ScalarType dtype = at::kDouble;
  bool sinks = false;
};

ContextAxis axis_of(const Case& c, comm::Group& group) {
  return {{.rank = group.rank(), .size = c.ranks, .zigzag = c.zigzag}, &group, c.method};
}

std::string title(const testing::TestParamInfo<Case>& info) {
  const auto& c = info.param;
  return fmt::format("{}_ranks{}_seq{}_heads{}_kv{}{}{}{}_{}", c.method->name, c.ranks, c.seq, c.heads, c.kv_heads,
                     c.window ? fmt::format("_window{}", c.window) : "", c.documents ? "_documents" : "", c.zigzag ? "" : "_contiguous",
                     at::toString(c.dtype)) +
         (c.sinks ? "_sinks" : "");
}

struct Results {
  std::vector<at::Tensor> tensors;  // output and gradients, of whole sequences
};

// All ranks' results put together; `run` makes this rank's from its tokens.
Results over_ranks(const Case& c, const std::function<std::vector<at::Tensor>(const ContextAxis&)>& run,
                   const std::vector<bool>& is_spread) {
  std::vector<std::vector<at::Tensor>> by_rank(static_cast<size_t>(c.ranks));
  TokenOrder any{.size = c.ranks, .zigzag = c.zigzag};
  comm::run_ranks(c.ranks, [&](comm::World& world) { by_rank[static_cast<size_t>(world.rank())] = run(axis_of(c, world.everyone())); });
  Results all;
  for (size_t i = 0; i < is_spread.size(); ++i) {
    std::vector<at::Tensor> parts;
    for (const auto& rank : by_rank) parts.push_back(rank[i]);
    all.tensors.push_back(is_spread[i] ? any.in_order(at::stack(parts), 1) : at::stack(parts).sum(0));  // of weights: parts of a sum
  }
  return all;
}

class ShardedAttention : public ::testing::TestWithParam<Case> {};

TEST_P(ShardedAttention, equals_attention_to_whole_sequences) {
  const auto& c = GetParam();
  const auto starts = c.documents ? documents_of(kBatch, c.seq) : at::Tensor();
  const auto q = random({kBatch, c.seq, c.heads, kDim}, 1), k = random({kBatch, c.seq, c.kv_heads, kDim}, 2),
             v = random({kBatch, c.seq, c.kv_heads, kDim}, 3), grad = random({kBatch, c.seq, c.heads * kDim}, 4);
  const auto run = [&](const ContextAxis& axis, at::ScalarType dtype) -> std::vector<at::Tensor> {
    std::vector<at::Tensor> leaves;
    const auto device = device::test_device(axis.rank);
    for (const auto& x : {q, k, v}) leaves.push_back(axis.own_tokens(x.to(dtype)).to(device).clone().set_requires_grad(true));
    Sequences sequences(kBatch, c.seq / axis.size, starts.defined() ? starts.to(device) : starts, 0, device, axis.schedule());
    const auto wide = dtype == at::kDouble ? at::kDouble : at::kFloat;
    const auto sinks = c.sinks ? random({c.heads}, 5).to(device, wide).set_requires_grad(true) : at::Tensor();
    const auto out = attention(leaves[0], leaves[1], leaves[2], 0.3, c.window, sequences, {}, sinks);
    (out * axis.own_tokens(grad.to(dtype)).to(device)).sum().backward();
    std::vector<at::Tensor> results{out.detach().cpu(), leaves[0].grad().cpu(), leaves[1].grad().cpu(), leaves[2].grad().cpu()};
    if (c.sinks) results.push_back(sinks.grad().cpu());
    return results;
  };
  const auto expected = run({}, at::kDouble);
  std::vector<bool> is_spread(4, true);
  if (c.sinks) is_spread.push_back(false);
  const auto got = over_ranks(
      c, [&](const ContextAxis& axis) { return run(axis, c.dtype); }, is_spread);
  const double tolerance = c.dtype == at::kDouble ? 1e-12 : c.dtype == at::kFloat ? 1e-5 : 2e-2;
  const char* const names[] = {"out", "grad q", "grad k", "grad v", "grad sinks"};
  for (size_t i = 0; i < expected.size(); ++i) {
    if (i < 4) {
      EXPECT_EQ(got.tensors[i].scalar_type(), c.dtype);
    }
    EXPECT_LT(error_of(got.tensors[i], expected[i]), tolerance) << names[i];
  }
  const auto again = over_ranks(
      c, [&](const ContextAxis& axis) { return run(axis, c.dtype); }, is_spread);
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_TRUE(at::equal(again.tensors[i], got.tensors[i])) << names[i] << ": other bits";
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const Method method : attention_methods()) {
    for (const int ranks : {2, 3, 4}) {
      all.push_back({ranks, method, true, 24, 12, 12});
      all.push_back({ranks, method, false, 24, 12, method == &kUlysses ? 12 : 2});
    }
    all.push_back({2, method, true, 24, 4, 2, 5});
    all.push_back({2, method, true, 24, 4, 2, 0, false});
    all.push_back({3, method, true, 24, 6, 3, 7, false});
    all.push_back({4, method, true, 16, 8, 2});  // fewer kv heads than ranks
    all.push_back({4, method, true, 8, 8, 1});   // a token per chunk
    all.push_back({2, method, true, 600, 4, 2, 0, true, at::kFloat});
    all.push_back({3, method, true, 600, 6, 3, 170, true, at::kFloat});
    all.push_back({3, method, false, 300, 6, 3, 0, true, at::kFloat});
    all.push_back({2, method, true, 400, 4, 2, 0, true, at::kBFloat16});
    all.push_back({2, method, true, 24, 4, 2, 5, true, at::kDouble, true});
    all.push_back({3, method, false, 24, 6, 3, 0, true, at::kDouble, true});
    all.push_back({4, method, true, 400, 8, 2, 170, true, at::kBFloat16, true});
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, ShardedAttention, ::testing::ValuesIn(cases()), title);

// The whole attention half of a ZAYA1 block: projections, convolutions, value shift, attention.
TEST_P(ShardedAttention, equals_cca_attention_to_whole_sequences) {
  const auto& c = GetParam();
  if (c.seq / (c.ranks * (c.zigzag ? 2 : 1)) < kCcaHalo) return;  // chunks must hold the halo
  const int64_t hidden = 16, q_width = c.heads * kDim, kv_width = c.kv_heads * kDim, latent = q_width + kv_width;
  const auto starts = c.documents ? documents_of(kBatch, c.seq) : at::Tensor();
  const auto x = random({kBatch, c.seq, hidden}, 5), grad = random({kBatch, c.seq, hidden}, 6);
  const auto run = [&](const ContextAxis& axis, at::ScalarType dtype) {
    ParameterList list;
    const auto matrix = [&](const char* name, tensor::Shape shape, bool keeps_fp32 = false) {
      return &list.add({.name = name,
                        .shape = std::move(shape),
                        .kind = keeps_fp32 ? Parameter::Kind::convolution : Parameter::Kind::matrix,
                        .initial = tensor::Initial::normal(0.4),
                        .keeps_fp32 = keeps_fp32});
    };
    const CcaAttention layer({.shape = {c.heads, c.kv_heads, kDim},
                              .window = c.window,
                              .rotary = {.rotated = kDim / 2},
                              .q = matrix("q", {q_width, hidden}),
                              .k = matrix("k", {kv_width, hidden}),
                              .current_value = matrix("v0", {kv_width / 2, hidden}),
                              .delayed_value = matrix("v1", {kv_width / 2, hidden}),
                              .depthwise_weight = matrix("c0", {latent, 1, 2}, true),
                              .depthwise_bias = matrix("b0", {latent}, true),
                              .grouped_weight = matrix("c1", {latent, kDim, 2}, true),
                              .grouped_bias = matrix("b1", {latent}, true),
                              .temperature = matrix("t", {c.kv_heads}, true),
                              .o = matrix("o", {hidden, q_width})});
    const auto device = device::test_device(axis.rank);
    list.allocate(dtype, device);
    list.initialise(7);
    auto own = axis.own_tokens(x.to(dtype)).to(device).clone().set_requires_grad(true);
    Sequences sequences(kBatch, c.seq / axis.size, starts.defined() ? starts.to(device) : starts, 0, device, axis.schedule());
    const auto out = layer(own, sequences, {});
    (out * axis.own_tokens(grad.to(dtype)).to(device)).sum().backward();
    list.collect_gradients();
    std::vector<at::Tensor> results = {out.detach().cpu(), own.grad().cpu()};
    for (const auto& p : list.all()) results.push_back(p->grad.cpu().clone());
    return results;
  };
  const auto expected = run({}, at::kDouble);
  std::vector<bool> is_spread(expected.size(), false);
  is_spread[0] = is_spread[1] = true;
  const auto got = over_ranks(
      c, [&](const ContextAxis& axis) { return run(axis, c.dtype); }, is_spread);
  const double tolerance = c.dtype == at::kDouble ? 1e-11 : c.dtype == at::kFloat ? 2e-4 : 6e-2;
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_LT(error_of(got.tensors[i], expected[i]), tolerance) << "result " << i;
}

TEST(TokenOrder, chunks_are_dealt_out_once_and_zigzag_balances_causal_work) {
  for (const bool zigzag : {false, true}) {
    for (const int size : {2, 3, 4, 7}) {
      std::vector<int> seen;
      std::vector<int64_t> work;  // visible pairs of chunks, twice counted but for the diagonal
      for (int r = 0; r < size; ++r) {
        const TokenOrder axis{.rank = r, .size = size, .zigzag = zigzag};
        int64_t pairs = 0;
        for (int i = 0; i < axis.chunks(); ++i) {
          EXPECT_EQ(axis.owner(axis.chunk(r, i)), r);
          seen.push_back(axis.chunk(r, i));
          pairs += 2 * axis.chunk(r, i) + 1;
        }
        work.push_back(pairs);
      }
      std::sort(seen.begin(), seen.end());
      for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<int>(i));
      if (zigzag) {
        EXPECT_EQ(*std::min_element(work.begin(), work.end()), *std::max_element(work.begin(), work.end()));
      }
    }
  }
}

TEST(TokenOrder, tokens_come_back_in_order) {
  for (const bool zigzag : {false, true}) {
    const TokenOrder axis{.size = 3, .zigzag = zigzag};
    const auto whole = at::arange(2 * 12 * 5).view({2, 12, 5});
    EXPECT_TRUE(at::equal(axis.in_order(axis.by_rank(whole, 1), 1), whole));
    for (int r = 0; r < 3; ++r) {
      auto own = axis;
      own.rank = r;
      EXPECT_TRUE(at::equal(own.own_tokens(whole), axis.by_rank(whole, 1)[r]));
    }
  }
}

// The formulas of attention_method.h and halo.h.
TEST(ShardedAttentionTraffic, is_what_the_formulas_say_to_the_byte) {
  for (const Method method : attention_methods()) {
    for (const int ranks : {2, 4}) {
      for (const int64_t kv_heads : {4, 2}) {
        const Case c{ranks, method, true, 16, 8, kv_heads, 0, true, at::kBFloat16};
        const int64_t p = ranks, own = kBatch * c.seq / p, w = kv_heads * kDim, q_width = c.heads * kDim;
        const int64_t replicated = std::max<int64_t>(kv_heads, p) * kDim;
        int64_t forward = 0, backward = 0;
        if (method == &kRing || method == &kBidirectionalRing)
          forward = 2 * (p - 1) * own * w * 2, backward = forward + 2 * p * own * w * 4;
        if (method == &kAllGather) forward = 2 * (p - 1) * own * w * 2, backward = 2 * forward;
        if (method == &kUlysses) forward = backward = (p - 1) * own * (2 * q_width + 2 * replicated) / p * 2;
        comm::run_ranks(ranks, [&](comm::World& world) {
          const auto axis = axis_of(c, world.everyone());
          Sequences sequences(kBatch, c.seq / p, documents_of(kBatch, c.seq), 0, at::kCPU, axis.schedule());
          const auto leaf = [&](int64_t heads) {
            return at::ones({kBatch, c.seq / p, heads, kDim}, at::kBFloat16).set_requires_grad(true);
          };
          const auto sent = [&] {
            int64_t all = 0;
            for (const auto& [name, traffic] : world.counters().totals()) all += traffic.sent_bytes;
            return all;
          };
          const auto out = attention(leaf(c.heads), leaf(kv_heads), leaf(kv_heads), 1, 0, sequences, {});
          EXPECT_EQ(sent(), forward) << method->name << " forward, " << ranks << " ranks, " << kv_heads << " kv heads";
          out.sum().backward();
          EXPECT_EQ(sent() - forward, backward) << method->name << " backward, " << ranks << " ranks, " << kv_heads << " kv heads";
          const int64_t before = sent();
          auto x = at::ones({kBatch, c.seq / p, 10}, at::kDouble).set_requires_grad(true);
          const auto haloed = with_halo(x, axis, kCcaHalo);
          const int64_t first = world.rank() + 1 < p, last = world.rank() > 0;  // whether a chunk's end leaves this rank
          EXPECT_EQ(sent() - before, (first + last) * kBatch * kCcaHalo * 10 * 8);
          haloed.sum().backward();
          EXPECT_EQ(sent() - before, 2 * (first + last) * kBatch * kCcaHalo * 10 * 8);
        });
      }
    }
  }
}

// The wire takes half as long as the attention of a pass: by turns it would take half as long again. Best of many, taken by turns,
// since other work on the machine makes both longer and neither shorter. At night; by day overlap_order_test.cpp tests it by order.
TEST(ShardedAttention, keys_travel_while_those_at_hand_are_attended_to) {
  if (!base::tests_run_at_night()) GTEST_SKIP() << "measured with ./scripts/test --night";
  const int64_t seq = 2048, heads = 4, dim = 64;
  const auto best_of = [&](Method method, double bytes_per_s) {
    comm::WorldOptions options;
    options.delay.bytes_per_s = bytes_per_s;
    double best = 1e9;
    comm::run_ranks(
        2,
        [&](comm::World& world) {
          at::set_num_threads(1);
          const ContextAxis axis{{.rank = world.rank(), .size = 2}, &world.everyone(), method};
          Sequences sequences(1, seq / 2, at::Tensor(), 0, at::kCPU, axis.schedule());
          const at::NoGradGuard no_grad;
          const auto x = at::ones({1, seq / 2, heads, dim});
          for (int i = 0; i < 4; ++i) {
            world.everyone().barrier();
            const auto start = std::chrono::steady_clock::now();
            attention(x, x, x, 1, 0, sequences, {});
            if (world.rank() == 0) best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
          }
        },
        options);
    return best;
  };
  for (const Method method : {&kRing, &kAllGather}) {
    double compute = best_of(method, 0);
    const double wire = compute / 2;
    double both = 1e9;
    // The remainder: the gather's first group of heads is waited for, a quarter of the wire, and putting things together.
    for (int attempt = 0; attempt < 20 && both > compute + 0.7 * wire; ++attempt) {
      both = std::min(both, best_of(method, 2.0 * static_cast<double>(seq / 2 * heads * dim * 4) / wire));
      compute = std::min(compute, best_of(method, 0));
    }
    EXPECT_LE(both, compute + 0.7 * wire) << method->name << ": by turns " << compute + wire;
  }
}

// Each of two messages takes half of what the one of a ring does, to the other neighbour.
TEST(ShardedAttention, a_bidirectional_ring_sends_half_each_way) {
  comm::run_ranks(3, [&](comm::World& world) {
    const ContextAxis axis{{.rank = world.rank(), .size = 3}, &world.everyone(), &kBidirectionalRing};
    Sequences sequences(1, 4, at::Tensor(), 0, at::kCPU, axis.schedule());
    const at::NoGradGuard no_grad;
    const auto q = at::ones({1, 4, 4, kDim}), kv = at::ones({1, 4, 2, kDim});
    attention(q, kv, kv, 1, 0, sequences, {});
    const auto sent = world.counters().by_kind()[comm::Kind::send];
    EXPECT_EQ(sent.calls, 2 * 2);  // two steps, two directions
    EXPECT_EQ(sent.sent_bytes, 2 * 2 * (2 * 4 * kDim * 4));
  });
}

// Those of the settings are those that there are.
TEST(ShardedAttention, every_method_has_a_setting) {
  mesh::ParallelConfig config;
  base::SettingsTable table;
  mesh::declare_settings(table, config);
  for (const auto* method : attention_methods())
    EXPECT_NO_THROW(table.set("parallel.context_method", method->name, "test")) << method->name;
  for (const auto* method : state_methods()) EXPECT_NO_THROW(table.set("parallel.state_method", method->name(), "test")) << method->name();
  EXPECT_THROW(attention_method("rnig"), base::ConfigError);
}

TEST(ShardedAttention, heads_that_cannot_be_shared_are_refused) {
  EXPECT_NO_THROW(kUlysses.check_heads(4, 8, 4));
  EXPECT_NO_THROW(kUlysses.check_heads(4, 8, 2));
  EXPECT_THROW(kUlysses.check_heads(4, 6, 3), base::ConfigError);
  EXPECT_THROW(kUlysses.check_heads(4, 12, 6), base::ConfigError);
  EXPECT_EQ(kRing.check_heads, nullptr);
}

}  // namespace
}  // namespace ingot::parallel
