// Layers with gradients of their own, against plain autograd compositions in fp64.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <numeric>

#include "kernels/activation.h"
#include "kernels/differentiable.h"
#include "kernels/fp32_islands.h"
#include "kernels/gemm_backend.h"
#include "kernels/gemm_tuning.h"
#include "kernels/reference/reference.h"
#include "layers/attention.h"
#include "layers/cost.h"
#include "layers/embedding.h"
#include "layers/experts.h"
#include "layers/head.h"
#include "layers/linear.h"
#include "layers/recompute.h"
#include "layers/router.h"
#include "layers/routing_losses.h"
#include "layers/sequences.h"
#include "layers/softmax_attention.h"
#include "layers/test_parameters.h"

namespace ingot::layers {
namespace {

using test::add, test::backward, test::expect_close, test::expect_near, test::in_mxfp8, test::random, test::there;
TEST(Linear, side_by_side_weights_give_the_products_and_gradients_of_each) {
  ParameterList list;
  auto &a = add(list, "a", {5, 7}, 1), &b = add(list, "b", {3, 7}, 2);
  const auto x = random({2, 4, 7}, 3).set_requires_grad(true), upstream = random({2, 4, 8}, 4);
  for (int microbatch = 0; microbatch < 2; ++microbatch) backward((linear(x, {&a, &b}) * upstream).sum());
  const auto y = x.detach().clone().set_requires_grad(true), wa = a.value.detach().clone().set_requires_grad(true),
             wb = b.value.detach().clone().set_requires_grad(true);
  backward((device::cat({at::matmul(y, wa.t()), at::matmul(y, wb.t())}, -1) * upstream).sum());
  expect_close(x.grad(), 2 * y.grad());
  expect_close(a.grad, 2 * wa.grad());  // two microbatches add up
  expect_close(b.grad, 2 * wb.grad());
  list.drop_gradients();
  backward((linear(x, {&a, &b}) * upstream).sum());
  expect_close(a.grad, wa.grad());  // and a dropped gradient is overwritten
}

TEST(Linear, adds_biases_with_their_gradients) {
  ParameterList list;
  auto &a = add(list, "a", {5, 7}, 1), &b = add(list, "b", {3, 7}, 2), &of_a = add(list, "of_a", {5}, 5), &of_b = add(list, "of_b", {3}, 6);
  const auto x = random({2, 4, 7}, 3).set_requires_grad(true), upstream = random({2, 4, 8}, 4);
  const auto copy = [](const at::Tensor& t) { return t.detach().clone().set_requires_grad(true); };
  const auto y = copy(x), wa = copy(a.value), wb = copy(b.value), ba = copy(of_a.value), bb = copy(of_b.value);
  const auto out = linear(x, {&a, &b}, {&of_a, &of_b});
  backward((out * upstream).sum());
  const auto wanted = device::cat({at::matmul(y, wa.t()) + ba, at::matmul(y, wb.t()) + bb}, -1);
  backward((wanted * upstream).sum());
  expect_close(out.detach(), wanted.detach());
  expect_close(x.grad(), y.grad());
  expect_close(a.grad, wa.grad());
  expect_close(b.grad, wb.grad());
  expect_close(of_a.value.grad(), ba.grad());
  expect_close(of_b.value.grad(), bb.grad());
}

// The three products by hand, each of operands that are rounded for it; what remains is the rounding of results to bf16.
TEST(Linear, in_fp8_multiplies_operands_rounded_along_the_summed_dimension) {
  constexpr double kResult = 0.003;
  ParameterList list;
  auto &a = add(list, "a", {40, 72}, 1), &b = add(list, "b", {24, 72}, 2);
  for (auto* weight : {&a, &b})
    weight->value = weight->value.detach().to(at::kBFloat16), weight->quantization = kernels::Quantization::mxfp8;
  const auto x = random({50, 72}, 3).to(at::kBFloat16).set_requires_grad(true), upstream = random({50, 64}, 4).to(at::kBFloat16);
  const auto out = linear(x, {&a, &b});
  backward((out * upstream).sum());
  const auto weights = device::cat({in_mxfp8(a.value, 1), in_mxfp8(b.value, 1)});
  expect_near(out.detach(), in_mxfp8(x, 1).mm(weights.t()), kResult, "output");
  const auto of_a = upstream.narrow(1, 0, 40), of_b = upstream.narrow(1, 40, 24);
  expect_near(x.grad(), in_mxfp8(of_a, 1).mm(in_mxfp8(a.value, 0)) + in_mxfp8(of_b, 1).mm(in_mxfp8(b.value, 0)), 2 * kResult, "x");
  expect_near(a.grad, in_mxfp8(of_a, 0).t().mm(in_mxfp8(x, 0)), 1e-5, "a");
  expect_near(b.grad, in_mxfp8(of_b, 0).t().mm(in_mxfp8(x, 0)), 1e-5, "b");
  const auto plain = x.detach().to(at::kDouble).mm(device::cat({a.value, b.value}).detach().to(at::kDouble).t());
  EXPECT_GT((out.detach().to(at::kDouble) - plain).norm().item<double>(), 5 * kResult * plain.norm().item<double>());
}

TEST(HeadLoss, equals_cross_entropy_of_the_whole_logits_with_all_gradients) {
  ParameterList list;
  auto& weight = add(list, "w", {101, 12}, 1);
  const auto hidden = random({3, 31, 12}, 2).set_requires_grad(true);
  auto targets = there(at::arange(93, at::kLong).remainder(101).view({3, 31}).clone());
  targets[1][5] = -100;
  const auto loss = head_loss(hidden, weight, targets, 0.125);
  backward(loss);
  const auto h = hidden.detach().clone().set_requires_grad(true), w = weight.value.detach().clone().set_requires_grad(true);
  const auto expected =
      at::cross_entropy_loss(at::matmul(h, w.t()).view({93, 101}), targets.view({93}), {}, at::Reduction::Sum, -100) * 0.125;
  backward(expected);
  expect_close(loss.detach(), expected.detach());
  expect_close(hidden.grad(), h.grad());
  expect_close(weight.grad, w.grad());
}

TEST(HeadLoss, caps_logits_and_keeps_them_small_with_all_gradients) {
  constexpr double kCap = 3, kZ = 0.02;
  ParameterList list;
  auto& weight = add(list, "w", {101, 12}, 1);
  const auto hidden = random({3, 31, 12}, 2).set_requires_grad(true);
  auto targets = there(at::arange(93, at::kLong).remainder(101).view({3, 31}).clone());
  targets[1][5] = -100;
  const auto loss = head_loss(hidden, weight, targets, 0.125, {.logit_cap = kCap, .z_loss = kZ});
  backward(loss);
  const auto h = hidden.detach().clone().set_requires_grad(true), w = weight.value.detach().clone().set_requires_grad(true);
  const auto logits = kCap * (at::matmul(h, w.t()).view({93, 101}) / kCap).tanh();
  const auto labels = targets.view({93});
  const auto entropy = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum, -100) * 0.125;
  backward(entropy + (logits.logsumexp(1) * labels.ge(0)).square().sum() * (kZ * 0.125));
  expect_close(loss.detach(), entropy.detach());
  expect_close(hidden.grad(), h.grad());
  expect_close(weight.grad, w.grad());
}

TEST(Embedding, repeated_ids_add_up_in_the_gradient) {
  ParameterList list;
  auto& table = add(list, "t", {10, 4}, 1);
  const auto ids = there(at::tensor({1, 3, 3, 9, 1, 1}, at::kLong).view({2, 3}));
  const auto upstream = random({2, 3, 4}, 2);
  backward((embedding(ids, table, at::kDouble) * upstream).sum());
  const auto t = table.value.detach().clone().set_requires_grad(true);
  backward((at::embedding(t, ids) * upstream).sum());
  expect_close(table.grad, t.grad());
}

TEST(SoftmaxAttention, norms_of_queries_and_keys_come_before_the_positions) {
  for (const bool is_of_head : {true, false}) {
    constexpr int64_t kHeads = 4, kKvHeads = 2, kDim = 6, kHidden = 10;
    ParameterList list;
    SoftmaxAttention layer({.heads = kHeads,
                            .kv_heads = kKvHeads,
                            .head_dim = kDim,
                            .window = 0,
                            .rotary = {.rotated = kDim},
                            .q = &add(list, "q", {kHeads * kDim, kHidden}, 1),
                            .k = &add(list, "k", {kKvHeads * kDim, kHidden}, 2),
                            .v = &add(list, "v", {kKvHeads * kDim, kHidden}, 3),
                            .o = &add(list, "o", {kHidden, kHeads * kDim}, 4),
                            .q_norm = &add(list, "qn", {is_of_head ? kDim : kHeads * kDim}, 5),
                            .k_norm = &add(list, "kn", {is_of_head ? kDim : kKvHeads * kDim}, 6),
                            .norm_eps = 1e-5});
    const auto x = random({2, 7, kHidden}, 7).set_requires_grad(true), upstream = random({2, 7, kHidden}, 8);
    Sequences sequences(2, 7, at::Tensor(), 0, x.device());
    const auto out = layer(x, sequences, {});
    backward((out * upstream).sum());
    list.collect_gradients();

    std::map<std::string, at::Tensor> leaf = {{"x", x.detach().clone().set_requires_grad(true)}};
    for (const auto& p : list.all()) leaf[p->name] = p->value.detach().clone().set_requires_grad(true);
    const auto heads = [&](const char* name, const char* norm, int64_t n) {
      auto h = at::matmul(leaf["x"], leaf[name].t());
      if (norm && !is_of_head) h = h / (h.square().mean(-1, true) + 1e-5).sqrt() * leaf[norm];
      h = h.unflatten(-1, {n, kDim});
      if (norm && is_of_head) h = h / (h.square().mean(-1, true) + 1e-5).sqrt() * leaf[norm];
      return norm ? kernels::rotate(h, sequences.rotary(layer.rotary, at::kDouble)) : h;
    };
    const auto by_head = [](const at::Tensor& t, int64_t repeats) { return t.transpose(1, 2).repeat_interleave(repeats, 1); };
    const auto q = by_head(heads("q", "qn", kHeads), 1), k = by_head(heads("k", "kn", kKvHeads), 2),
               v = by_head(heads("v", nullptr, kKvHeads), 2);
    const auto future = there(at::ones({7, 7}, at::kBool).triu(1));
    const auto scores = (at::matmul(q, k.transpose(2, 3)) / std::sqrt(6.0)).masked_fill(future, -1e300);
    const auto expected = at::matmul(at::matmul(at::softmax(scores, -1), v).transpose(1, 2).flatten(2), leaf["o"].t());
    expect_close(out.detach(), expected.detach());
    backward((expected * upstream).sum());
    expect_close(x.grad(), leaf["x"].grad());
    for (const auto& p : list.all()) expect_close(p->grad, leaf[p->name].grad());
  }
}

// What verification of transformers' fp64 runs takes, wherever the model lies: the softmax alone is rounded.
TEST(SoftmaxAttention, with_its_softmax_in_fp32_is_near_that_in_fp64) {
  const auto q = random({2, 7, 4, 6}, 1).set_requires_grad(true), k = random({2, 7, 2, 6}, 2), v = random({2, 7, 2, 6}, 3);
  const auto starts = there(at::tensor({0, 0, 2, 2, 2, 5, 5, 0, 0, 0, 0, 0, 0, 0}, at::kInt).view({2, 7}));
  for (const auto& documents : {at::Tensor(), starts}) {
    Sequences sequences(2, 7, documents, 0, q.device());
    const auto run = [&] {
      const auto out = attention(q, k, v, 0.4, 3, sequences, {});
      q.mutable_grad() = at::Tensor();
      backward(out.square().sum());
      return std::pair(out.detach(), q.grad().clone());
    };
    const auto [wide, wide_gradient] = run();
    const kernels::Fp32Islands islands;
    const auto [rounded, rounded_gradient] = run();
    EXPECT_FALSE(at::equal(wide, rounded));
    expect_close(rounded, wide, 1e-6);
    expect_close(rounded_gradient, wide_gradient, 1e-6);
  }
}

// The oracle: the sink as one more column of scores, by autograd (gpt-oss).
TEST(SoftmaxAttention, with_sinks_is_a_softmax_with_one_more_score) {
  for (const int64_t window : {0, 3}) {
    const auto leaf = [](const tensor::Shape& shape, uint64_t seed) { return random(shape, seed).set_requires_grad(true); };
    const auto q = leaf({2, 7, 4, 6}, 1), k = leaf({2, 7, 2, 6}, 2), v = leaf({2, 7, 2, 6}, 3), sinks = leaf({4}, 4);
    const auto upstream = random({2, 7, 24}, 5);
    Sequences sequences(2, 7, {}, 0, q.device());
    const auto out = attention(q, k, v, 0.4, window, sequences, {}, sinks);
    backward((out * upstream).sum());
    std::vector<at::Tensor> leaves;
    for (const auto& x : {q, k, v, sinks}) leaves.push_back(x.detach().clone().set_requires_grad(true));
    const auto heads_first = [](const at::Tensor& x) { return x.transpose(1, 2).repeat_interleave(4 / x.size(2), 1); };
    const auto scores = at::matmul(heads_first(leaves[0]), heads_first(leaves[1]).transpose(2, 3)) * 0.4;
    const auto at_key = there(at::arange(7, at::kLong));
    auto hidden = at_key.unsqueeze(0).gt(at_key.unsqueeze(1));
    if (window > 0) hidden = hidden.logical_or(at_key.unsqueeze(0).le(at_key.unsqueeze(1) - window));
    const auto all = device::cat({scores.masked_fill(hidden, -1e300), leaves[3].view({1, 4, 1, 1}).expand({2, 4, 7, 1})}, -1).softmax(-1);
    const auto expected = at::matmul(all.narrow(-1, 0, 7), heads_first(leaves[2])).transpose(1, 2).flatten(2);
    backward((expected * upstream).sum());
    expect_close(out.detach(), expected.detach());
    size_t i = 0;
    for (const auto& x : {q, k, v, sinks}) expect_close(x.grad(), leaves[i++].grad());
  }
}

TEST(Recompute, gives_the_same_gradients_and_runs_the_function_twice) {
  ParameterList list;
  auto& w = add(list, "w", {4, 4}, 1);
  const auto scale = random({4}, 2).set_requires_grad(true);  // a small parameter that autograd itself differentiates
  const auto x = random({3, 4}, 3).set_requires_grad(true);
  int runs = 0, seen_again = 0;
  const TensorFunction function = [&](const std::vector<at::Tensor>& in) -> std::vector<at::Tensor> {
    ++runs;
    seen_again += is_recomputing() ? 1 : 0;
    EXPECT_FALSE(in[1].defined());
    return {at::tanh(linear(in[0], {&w})) * scale, in[0] * 2};
  };
  const auto out = recompute(function, {x, at::Tensor()});
  backward((out[0] * out[1]).sum());
  EXPECT_EQ(runs, 2);
  EXPECT_EQ(seen_again, 1);
  const auto grad_x = x.grad().clone(), grad_w = w.grad.clone(), grad_scale = scale.grad().clone();
  x.mutable_grad().reset();
  scale.mutable_grad().reset();
  list.drop_gradients();
  const auto plain = function({x, at::Tensor()});
  backward((plain[0] * plain[1]).sum());
  EXPECT_TRUE(at::equal(grad_x, x.grad()));
  EXPECT_TRUE(at::equal(grad_w, w.grad));
  EXPECT_TRUE(at::equal(grad_scale, scale.grad()));
}

TEST(Sequences, visibility_joins_windows_and_documents) {
  const auto starts = at::tensor({0, 0, 2, 2, 2, 0, 0, 0, 0, 0}, at::kInt).view({2, 5});
  Sequences sequences(2, 5, starts, 0, at::kCPU);
  EXPECT_TRUE(at::equal(sequences.visible_from(0), starts));
  EXPECT_TRUE(at::equal(sequences.visible_from(2), at::tensor({0, 0, 2, 2, 3, 0, 0, 1, 2, 3}, at::kInt).view({2, 5})));
  EXPECT_TRUE(at::equal(sequences.is_start(), at::tensor({1, 0, 1, 0, 0, 1, 0, 0, 0, 0}, at::kInt).view({2, 5}).to(at::kBool)));
  Sequences later(1, 2, at::Tensor(), 7, at::kCPU);
  EXPECT_TRUE(at::equal(later.visible_from(3), at::tensor({5, 6}, at::kInt).view({1, 2})));
  EXPECT_FALSE(later.visible_from(0).defined());
}

TEST(Rotary, llama3_scaling_keeps_high_and_stretches_low_frequencies) {
  const RotarySettings plain{.base = 500000, .rotated = 128};
  RotarySettings scaled = plain;
  scaled.factor = 8;
  const auto a = inverse_frequencies(plain), b = inverse_frequencies(scaled);
  EXPECT_DOUBLE_EQ(a[0].item<double>(), b[0].item<double>());
  EXPECT_NEAR(a[63].item<double>() / b[63].item<double>(), 8, 1e-9);
}

TEST(Cost, of_causal_attention_counts_visible_pairs) {
  EXPECT_EQ(visible_pairs(4, 0), 10);
  EXPECT_EQ(visible_pairs(4, 2), 7);
  EXPECT_EQ(visible_pairs(4, 9), 10);
  EXPECT_EQ(attention_flops(1, 4, 0, 2, 8), 4 * 10 * 16);
}

}  // namespace
}  // namespace ingot::layers
