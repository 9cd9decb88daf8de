// Routers, their losses, and experts, against plain autograd compositions in fp64.
#include <ATen/TensorIndexing.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <numeric>

#include "kernels/activation.h"
#include "kernels/gemm_backend.h"
#include "kernels/gemm_tuning.h"
#include "layers/experts.h"
#include "layers/linear.h"
#include "layers/router.h"
#include "layers/routing_losses.h"
#include "layers/test_parameters.h"

namespace ingot::layers {
namespace {

using test::add, test::backward, test::expect_close, test::expect_near, test::in_mxfp8, test::random, test::there;

// The oracle: every slot on its own, by autograd.
at::Tensor experts_one_by_one(const at::Tensor& x, const at::Tensor& choice, const at::Tensor& weight, const at::Tensor& gate_up,
                              const at::Tensor& down, int64_t top_k, SkipOutput skip) {
  std::vector<at::Tensor> rows;
  for (int64_t token = 0; token < x.size(0); ++token) {
    auto sum = 0 * x[token];
    for (int64_t k = 0; k < top_k; ++k) {
      const int64_t slot = token * top_k + k, e = choice[slot].item<int64_t>();
      if (e == gate_up.size(0)) {
        if (skip == SkipOutput::identity) sum = sum + weight[slot] * x[token];
        continue;
      }
      const auto halves = at::matmul(gate_up[e], x[token]).chunk(2);
      sum = sum + weight[slot] * at::matmul(down[e], at::silu(halves[0]) * halves[1]);
    }
    rows.push_back(sum);
  }
  return at::stack(rows);
}

TEST(Experts, match_the_token_by_token_mixture_also_with_empty_experts_and_skips) {
  for (const int64_t top_k : {1, 2}) {
    for (const auto skip : {SkipOutput::zero, SkipOutput::identity}) {
      for (const int64_t only : {-1, 0, 4}) {  // -1: spread; 0: all tokens on expert 0; 4: all skip
        ParameterList list;
        auto &gate_up = add(list, "u", {4, 6, 5}, 1), &down = add(list, "d", {4, 5, 3}, 2);
        const auto x = random({9, 5}, 3).set_requires_grad(true), upstream = random({9, 5}, 5);
        const auto weight = random({9 * top_k}, 4).abs().set_requires_grad(true);
        const auto choice =
            there(only >= 0 ? at::full({9 * top_k}, only, at::kLong) : at::arange(9 * top_k, at::kLong).mul(7).remainder(5));
        backward((experts(x, choice, weight, {gate_up, down}, top_k, skip) * upstream).sum());
        const auto y = x.detach().clone().set_requires_grad(true), w = weight.detach().clone().set_requires_grad(true);
        const auto u = gate_up.value.detach().clone().set_requires_grad(true), d = down.value.detach().clone().set_requires_grad(true);
        backward((experts_one_by_one(y, choice, w, u, d, top_k, skip) * upstream).sum());
        const auto or_zero = [](const at::Tensor& leaf) { return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf); };
        expect_close(x.grad(), or_zero(y));
        expect_close(weight.grad(), or_zero(w));
        expect_close(gate_up.grad, or_zero(u));
        expect_close(down.grad, or_zero(d));
      }
    }
  }
}

// The oracle: every slot on its own, by autograd (gpt-oss).
TEST(Experts, with_biases_and_a_clamped_gate_match_the_token_by_token_mixture) {
  constexpr int64_t kExperts = 3, kTopK = 2, kTokens = 9;
  ParameterList list;
  auto &gate_up = add(list, "u", {kExperts, 6, 5}, 1), &down = add(list, "d", {kExperts, 5, 3}, 2);
  auto &up_bias = list.add({.name = "bu", .shape = {kExperts, 6}, .kind = Parameter::Kind::vector}),
       &down_bias = list.add({.name = "bd", .shape = {kExperts, 5}, .kind = Parameter::Kind::vector});
  up_bias.value = (random({kExperts, 6}, 6) * 6).set_requires_grad(true);  // wide enough to clamp
  down_bias.value = random({kExperts, 5}, 7).set_requires_grad(true);
  const auto x = random({kTokens, 5}, 3).set_requires_grad(true), upstream = random({kTokens, 5}, 5);
  const auto weight = random({kTokens * kTopK}, 4).abs().set_requires_grad(true);
  const auto choice = there(at::arange(kTokens * kTopK, at::kLong).mul(7).remainder(2).mul(2));  // nobody goes to expert 1
  backward((experts(x, choice, weight, {gate_up, down, &up_bias, &down_bias, kernels::Gate::clamped}, kTopK, SkipOutput::zero) * upstream)
               .sum());
  std::vector<at::Tensor> leaves;
  for (const auto& of : {x, weight, gate_up.value, down.value, up_bias.value, down_bias.value})
    leaves.push_back(of.detach().clone().set_requires_grad(true));
  auto sum = there(at::zeros({}, at::kDouble));
  for (int64_t slot = 0; slot < kTokens * kTopK; ++slot) {
    const int64_t token = slot / kTopK, e = choice[slot].item<int64_t>();
    const auto halves = (at::matmul(leaves[2][e], leaves[0][token]) + leaves[4][e]).chunk(2);
    const auto gate = halves[0].clamp_max(7), up = halves[1].clamp(-7, 7);
    const auto inner = (up + 1) * gate * (gate * static_cast<double>(kernels::kClampedSlope)).sigmoid();
    sum = sum + (leaves[1][slot] * (at::matmul(leaves[3][e], inner) + leaves[5][e]) * upstream[token]).sum();
  }
  backward(sum);
  expect_close(x.grad(), leaves[0].grad());
  expect_close(weight.grad(), leaves[1].grad());
  expect_close(gate_up.grad, leaves[2].grad());
  expect_close(down.grad, leaves[3].grad());
  expect_close(up_bias.value.grad(), leaves[4].grad());
  expect_close(down_bias.value.grad(), leaves[5].grad());
}

// With sides that a GPU's grouped GEMMs take.
TEST(Experts, in_bf16_match_the_mixture_up_to_rounding) {
  const auto close = [](const at::Tensor& found, const at::Tensor& expected, const char* what) {
    EXPECT_LE((found.to(at::kDouble) - expected).norm().item<double>(), 0.02 * expected.norm().item<double>() + 1e-6) << what;
  };
  const auto or_zero = [](const at::Tensor& leaf) { return leaf.grad().defined() ? leaf.grad() : at::zeros_like(leaf); };
  for (const int64_t top_k : {1, 2})
    for (const auto skip : {SkipOutput::zero, SkipOutput::identity})
      for (const int64_t only : {-1, 0, 3, 4}) {  // -1: spread; 4: all skip
        SCOPED_TRACE(fmt::format("top {}, only {}", top_k, only));
        ParameterList list;
        auto &gate_up = add(list, "u", {4, 16, 24}, 1), &down = add(list, "d", {4, 24, 8}, 2);
        for (auto* weight : {&gate_up, &down}) weight->value = weight->value.detach().to(at::kBFloat16);
        const auto x = random({37, 24}, 3).to(at::kBFloat16).set_requires_grad(true), upstream = random({37, 24}, 5).to(at::kBFloat16);
        const auto weight = random({37 * top_k}, 4).abs().to(at::kFloat).set_requires_grad(true);
        const auto choice =
            there(only >= 0 ? at::full({37 * top_k}, only, at::kLong) : at::arange(37 * top_k, at::kLong).mul(7).remainder(5));
        const auto leaf_of = [](const at::Tensor& value) { return value.detach().to(at::kDouble).set_requires_grad(true); };
        const auto y = leaf_of(x), w = leaf_of(weight), u = leaf_of(gate_up.value), d = leaf_of(down.value);
        for (int microbatch = 0; microbatch < 2; ++microbatch) {
          const auto out = experts(x, choice, weight, {gate_up, down}, top_k, skip);
          const auto expected = experts_one_by_one(y, choice, w, u, d, top_k, skip);
          close(out, expected.detach(), "output");
          backward((out * upstream).sum());
          backward((expected * upstream.to(at::kDouble)).sum());
        }
        close(x.grad(), or_zero(y), "x");
        close(weight.grad(), or_zero(w), "weight");
        close(gate_up.grad, or_zero(u), "gate_up");
        close(down.grad, or_zero(d), "down");
      }
}

// Their numbers of rows are others in each step: measuring would never end.
TEST(Experts, leave_gemms_untuned) {
  const auto device = device::is_gpu(device::test_device()) ? device::test_device() : device::emulated_device(0);
  if (!kernels::gemm_library_of(device)) GTEST_SKIP() << "this build has no algorithms to choose from";
  const auto file = std::filesystem::path(::testing::TempDir()) / fmt::format("experts_untuned_{}.json", getpid());
  std::filesystem::remove(file);
  ParameterList list;
  const auto on_device = [&](const char* name, at::IntArrayRef sizes, uint64_t seed) -> Parameter& {
    auto& p = list.add({.name = name, .shape = sizes.vec(), .kind = Parameter::Kind::matrix});
    p.value = layers::random(sizes, seed).to(at::kFloat).to(device).set_requires_grad(true);
    return p;
  };
  auto &gate_up = on_device("gate_up", {3, 16, 8}, 1), &down = on_device("down", {3, 8, 8}, 2);
  kernels::use_gemm_backend(kernels::GemmBackend::tuned);
  kernels::keep_gemm_choices(device, file, {}, false);
  for (const int64_t rows : {5, 7}) {
    const auto x = layers::random({rows, 8}, 3).to(at::kFloat).to(device).set_requires_grad(true);
    const auto choice = at::arange(rows, at::kLong).remainder(3).to(device);
    backward(experts(x, choice, at::ones({rows}, x.options()), {gate_up, down}, /*top_k=*/1, SkipOutput::zero).sum());
  }
  kernels::use_gemm_backend(kernels::GemmBackend::standard);
  kernels::keep_gemm_choices(device, {}, {}, false);
  EXPECT_FALSE(std::filesystem::exists(file));
}

// Every expert is a pair of linear layers in FP8 over its own rows.
TEST(Experts, in_fp8_are_linear_layers_in_fp8) {
  constexpr int64_t kExperts = 3, kTokens = 60;
  ParameterList list;
  auto &gate_up = add(list, "u", {kExperts, 48, 40}, 1), &down = add(list, "d", {kExperts, 40, 24}, 2);
  for (auto* weight : {&gate_up, &down})
    weight->value = weight->value.detach().to(at::kBFloat16), weight->quantization = kernels::Quantization::fp8_block;
  const auto x = random({kTokens, 40}, 3).to(at::kBFloat16).set_requires_grad(true), upstream = random({kTokens, 40}, 5).to(at::kBFloat16);
  const auto weight = at::ones({kTokens}, x.options().dtype(at::kFloat)).set_requires_grad(true);
  const auto choice = there(at::arange(kTokens, at::kLong).remainder(kExperts).clone());
  const auto out = experts(x, choice, weight, {gate_up, down}, 1, SkipOutput::zero);
  backward((out * upstream).sum());
  for (int64_t e = 0; e < kExperts; ++e) {
    const auto own = choice.eq(e).nonzero().view(-1);
    ParameterList alone;
    auto &up = add(alone, "u", {48, 40}, 1), &low = add(alone, "d", {40, 24}, 2);
    up.value = gate_up.value.detach()[e].clone(), low.value = down.value.detach()[e].clone();
    up.quantization = low.quantization = kernels::Quantization::fp8_block;
    const auto rows = x.detach().index_select(0, own).set_requires_grad(true);
    const auto expected = linear(kernels::glu(linear(rows, {&up})), {&low});
    backward((expected * upstream.index_select(0, own)).sum());
    expect_near(out.detach().index_select(0, own), expected.detach().to(at::kDouble), 1e-6, "output");
    expect_near(x.grad().index_select(0, own), rows.grad().to(at::kDouble), 1e-6, "x");
    expect_near(gate_up.grad[e], up.grad.to(at::kDouble), 1e-5, "gate_up");
    expect_near(down.grad[e], low.grad.to(at::kDouble), 1e-5, "down");
  }
}

// In e4m3 with the smallest power of two at which nothing overflows.
at::Tensor in_fp8(const at::Tensor& x_in) {
  const auto x = x_in.detach().cpu().to(at::kDouble);
  const double largest = x.abs().max().item<double>(), scale = largest > 0 ? std::exp2(std::ceil(std::log2(largest / 448))) : 1;
  return (x / scale).to(at::kFloat8_e4m3fn).to(at::kDouble) * scale;
}

// The five products of each expert by hand, of its own rows and weights, each operand with a scale of its own. One by one on a CPU, grouped
// on a GPU. What remains is the rounding of what lies between the products to bf16, and the codes that it changes.
TEST(Experts, in_fp8_multiply_operands_rounded_expert_by_expert) {
  constexpr int64_t kExperts = 4, kHidden = 48, kFfn = 32;
  const auto narrow = [](const at::Tensor& x) { return x.to(at::kBFloat16).to(at::kDouble); };
  const auto close = [](const at::Tensor& found, const at::Tensor& expected, const char* what) {
    EXPECT_LE((found.detach().cpu().to(at::kDouble) - expected).norm().item<double>(), 0.01 * expected.norm().item<double>() + 1e-9)
        << what;
  };
  for (const int64_t top_k : {1, 2})
    for (const int64_t only : {-1, 0, 3, 4}) {  // -1: spread, expert 2 empty; 4: all skip
      SCOPED_TRACE(fmt::format("top {}, only {}", top_k, only));
      const int64_t tokens = 61, slots = tokens * top_k;
      ParameterList list;
      auto &gate_up = add(list, "u", {kExperts, 2 * kFfn, kHidden}, 1), &down = add(list, "d", {kExperts, kHidden, kFfn}, 2);
      for (auto* weight : {&gate_up, &down}) {
        weight->value = (weight->value.detach() * there(at::tensor({1.0, 8.0, 1.0, 0.1}).view({kExperts, 1, 1}))).to(at::kBFloat16);
        weight->quantization = kernels::Quantization::fp8;
      }
      const auto place = at::arange(slots, at::kLong), spread = place.mul(7).remainder(5);
      const auto choice = only >= 0 ? at::full({slots}, only, at::kLong) : at::where(spread.eq(2), at::zeros_like(spread), spread);
      // Skipped tokens are the largest, and in no expert's scale.
      auto x_host = layers::random({tokens, kHidden}, 3), up_host = layers::random({tokens, kHidden}, 5);
      if (top_k == 1)
        x_host.mul_(1 + 200 * choice.eq(4).to(at::kDouble).unsqueeze(1)), up_host.mul_(1 + 200 * choice.eq(4).to(at::kDouble).unsqueeze(1));
      const auto x = there(x_host.to(at::kBFloat16)).set_requires_grad(true), upstream = there(up_host.to(at::kBFloat16));
      const auto weight = random({slots}, 4).abs().to(at::kFloat).set_requires_grad(true);
      const auto out = experts(x, there(choice), weight, {gate_up, down}, top_k, SkipOutput::zero);
      backward((out * upstream).sum());
      auto expected_out = at::zeros({tokens, kHidden}, at::kDouble), expected_x = at::zeros({tokens, kHidden}, at::kDouble);
      auto expected_weight = at::zeros({slots}, at::kDouble);
      for (int64_t e = 0; e < kExperts; ++e) {
        const auto own = choice.eq(e).nonzero().view(-1), of = own.div(top_k, "floor");
        if (own.numel() == 0) {
          EXPECT_EQ(gate_up.grad[e].abs().max().item<double>() + down.grad[e].abs().max().item<double>(), 0) << e;
          continue;
        }
        const auto rows = x_host.to(at::kBFloat16).index_select(0, of), grad = up_host.to(at::kBFloat16).index_select(0, of);
        const auto u = gate_up.value[e], d = down.value[e];
        const auto pre = narrow(in_fp8(rows).mm(in_fp8(u).t())).set_requires_grad(true);
        const auto w = weight.detach().cpu().to(at::kDouble).index_select(0, own).set_requires_grad(true);
        const auto halves = pre.chunk(2, 1);
        const auto activated = at::silu(halves[0]) * halves[1] * w.unsqueeze(1);
        expected_out.index_add_(0, of, narrow(in_fp8(narrow(activated.detach())).mm(in_fp8(d).t())));
        backward((activated * narrow(in_fp8(grad).mm(in_fp8(d)))).sum());
        const auto grad_pre = narrow(pre.grad());
        expected_x.index_add_(0, of, narrow(in_fp8(grad_pre).mm(in_fp8(u))));
        expected_weight.index_copy_(0, own, w.grad());
        close(down.grad[e], in_fp8(grad).t().mm(in_fp8(narrow(activated.detach()))), "down");
        close(gate_up.grad[e], in_fp8(grad_pre).t().mm(in_fp8(rows)), "gate_up");
      }
      close(out, expected_out, "output");
      close(x.grad(), expected_x, "x");
      close(weight.grad(), expected_weight, "weight");
    }
}

// In bf16 on a CPU experts' rows are multiplied together with rows behind them (kernels/matmul.h).
TEST(Experts, in_bf16_do_not_touch_each_others_rows) {
  const auto result = [](at::ScalarType dtype, bool third_is_broken) {
    ParameterList list;
    auto &gate_up = add(list, "u", {4, 64, 32}, 1), &down = add(list, "d", {4, 32, 32}, 2);
    for (auto* weight : {&gate_up, &down}) {
      auto value = (weight->value.detach() * 0.1).to(dtype);
      if (third_is_broken) value[2].fill_(std::nan(""));
      weight->value = value;
    }
    const auto x = random({300, 32}, 3).to(dtype).set_requires_grad(true), upstream = random({300, 32}, 5).to(dtype);
    const auto weight = random({300}, 4).abs().to(at::kFloat).set_requires_grad(true);
    // 201, 3, 95 and 1 rows.
    const auto place = there(at::arange(300, at::kLong));
    const auto choice = place.ge(201).to(at::kLong) + place.ge(204) + place.ge(299);
    const auto out = experts(x, choice, weight, {gate_up, down}, 1, SkipOutput::zero);
    backward((out * upstream).sum());
    return std::vector{out.detach().to(at::kDouble), x.grad().to(at::kDouble), weight.grad().to(at::kDouble).unsqueeze(1),
                       gate_up.grad.to(at::kDouble).flatten(1), down.grad.to(at::kDouble).flatten(1)};
  };
  const auto narrow = result(at::kBFloat16, false), wide = result(at::kFloat, false), broken = result(at::kBFloat16, true);
  for (size_t i = 0; i < narrow.size(); ++i) {
    EXPECT_LT((narrow[i] - wide[i]).norm().item<double>(), 0.02 * wide[i].norm().item<double>()) << i;
    const auto others =
        i < 3 ? device::cat({broken[i].narrow(0, 0, 204), broken[i].narrow(0, 299, 1)}) : broken[i].index({at::tensor({0, 1, 3})});
    EXPECT_FALSE(others.isnan().any().item<bool>()) << i;
  }
}

// The oracle: DeepSeek-V3's rule (arXiv 2412.19437, section 2.1.2) one token and one group at a time.
TEST(LinearRouter, takes_the_best_experts_of_the_best_groups_by_sigmoids) {
  constexpr int64_t kGroups = 3, kOfGroup = 4, kTopGroups = 2, kTopK = 3, kTokens = 11, kHidden = 6;
  ParameterList list;
  auto& weight = add(list, "w", {kGroups * kOfGroup, kHidden}, 1);
  auto& bias = list.add({.name = "b", .shape = {kGroups * kOfGroup}, .kind = Parameter::Kind::buffer});
  bias.value = random({kGroups * kOfGroup}, 4) * 0.3;
  const auto x = random({kTokens, kHidden}, 2).set_requires_grad(true), upstream = random({kTokens, kTopK}, 3);
  const kernels::ExpertRule rule{.score = kernels::RouterScore::sigmoid,
                                 .top_k = kTopK,
                                 .renormalises = true,
                                 .scale = 2.5,
                                 .groups = kGroups,
                                 .top_groups = kTopGroups};
  const auto routing = route(x, LinearRouterParameters{&weight, &bias, rule});
  backward((routing.weight.view({kTokens, kTopK}) * upstream).sum());
  const auto y = x.detach().clone().set_requires_grad(true), w = weight.value.detach().clone().set_requires_grad(true);
  const auto scores = 1 / (1 + (-at::matmul(y, w.t())).exp());
  auto sum = there(at::zeros({}, at::kDouble));
  for (int64_t token = 0; token < kTokens; ++token) {
    const auto biased = (scores[token] + bias.value).detach().to(at::kCPU);
    std::vector<std::pair<double, int64_t>> groups;
    for (int64_t g = 0; g < kGroups; ++g) {
      const auto of_group = std::get<0>(biased.narrow(0, g * kOfGroup, kOfGroup).sort(0, /*descending=*/true));
      groups.emplace_back(-(of_group[0] + of_group[1]).item<double>(), g);
    }
    std::sort(groups.begin(), groups.end());
    std::vector<std::pair<double, int64_t>> experts;
    for (int64_t i = 0; i < kTopGroups; ++i)
      for (int64_t e = 0; e < kOfGroup; ++e) {
        const int64_t expert = groups[static_cast<size_t>(i)].second * kOfGroup + e;
        experts.emplace_back(-biased[expert].item<double>(), expert);
      }
    std::sort(experts.begin(), experts.end());
    at::Tensor chosen = at::empty({kTopK}, at::kLong);
    for (int64_t i = 0; i < kTopK; ++i) chosen[i] = experts[static_cast<size_t>(i)].second;
    EXPECT_TRUE(at::equal(routing.choice.view({kTokens, kTopK})[token].to(at::kCPU), chosen)) << token;
    const auto mixed = scores[token].index_select(0, there(chosen));
    sum = sum + (2.5 * mixed / mixed.sum() * upstream[token]).sum();
  }
  backward(sum);
  expect_close(x.grad(), y.grad());
  expect_close(weight.grad, w.grad());
}

// The oracle: the definitions, set by set, token by token and expert by expert; shares are constants.
TEST(RoutingLosses, have_the_values_and_gradients_of_their_definitions) {
  constexpr int64_t kRows = 3, kSeq = 4, kTokens = kRows * kSeq, kExperts = 5, kTopK = 2;
  constexpr double kBalance = 0.3, kZ = 0.2, kShare = 1.0 / 20;
  for (const auto score : {kernels::RouterScore::softmax, kernels::RouterScore::sigmoid})
    for (const auto over : {BalanceOver::sequence, BalanceOver::microbatch, BalanceOver::batch}) {
      SCOPED_TRACE(fmt::format("score {}, over {}", static_cast<int>(score), static_cast<int>(over)));
      RoutingTotals totals(2, kExperts, device::test_device());
      std::vector<double> before(kExperts, 0);  // of earlier microbatches of the step
      double balance = 0, z = 0;
      for (int microbatch = 0; microbatch < 2; ++microbatch) {
        const auto logits = random({kTokens, kExperts}, static_cast<uint64_t>(5 + microbatch)).set_requires_grad(true);
        const auto upstream = random({kTokens * kTopK}, 9);
        const auto choice = std::get<1>(logits.detach().topk(kTopK, -1)).flatten();
        const auto weight_of = [&](const at::Tensor& x) { return x.gather(1, choice.view({-1, kTopK})).sigmoid().flatten(); };
        RoutingLosses losses(
            {.balance = kBalance, .z = kZ, .over = over}, kShare, [](const at::Tensor&) {}, totals);
        const Routing routing{.logits = logits, .weight = weight_of(logits), .choice = choice, .score = score};
        const auto weight = losses.attach_to(routing, 1, kExperts, {.rows = kRows, .seq = kSeq, .first = 0});
        EXPECT_TRUE(at::equal(weight, routing.weight));
        backward((weight * upstream).sum());

        const auto leaf = logits.detach().to(at::kCPU).clone().set_requires_grad(true), chosen = choice.to(at::kCPU).view({kTokens, kTopK});
        const int64_t sets = over == BalanceOver::sequence ? kRows : 1, of_set = kTokens / sets;
        at::Tensor loss = (weight_of(leaf.to(choice.device())) * upstream).sum().to(at::kCPU);
        for (int64_t set = 0; set < sets; ++set) {
          auto counts = over == BalanceOver::batch ? before : std::vector<double>(kExperts, 0);
          for (int64_t t = set * of_set; t < (set + 1) * of_set; ++t)
            for (int64_t k = 0; k < kTopK; ++k) counts[static_cast<size_t>(chosen[t][k].item<int64_t>())] += 1;
          const double all = std::accumulate(counts.begin(), counts.end(), 0.0);
          for (int64_t t = set * of_set; t < (set + 1) * of_set; ++t) {
            const auto exps = score == kernels::RouterScore::softmax ? leaf[t].exp() : leaf[t].sigmoid();
            for (int64_t e = 0; e < kExperts; ++e) {
              const auto term = kExperts * counts[static_cast<size_t>(e)] / all * exps[e] / exps.sum() * kShare;
              balance += term.item<double>();
              loss = loss + kBalance * term;
            }
            const auto lse = leaf[t].exp().sum().log();
            z += (lse * lse).item<double>() * kShare;
            loss = loss + kZ * kShare * lse * lse;
          }
          before = counts;
        }
        backward(loss);
        expect_close(logits.grad().to(at::kCPU), leaf.grad());
      }
      const auto values = totals.values().cpu();
      EXPECT_NEAR(values[0].item<float>(), balance, 1e-5 * balance);
      EXPECT_NEAR(values[1].item<float>(), z, 1e-5 * z);
    }
}

// The oracle: every token's probabilities sorted, one by one.
TEST(LinearRouter, takes_the_likeliest_experts_and_their_probabilities) {
  for (const int64_t top_k : {1, 2, 5}) {
    for (const bool renormalises : {false, true}) {
      ParameterList list;
      auto& weight = add(list, "w", {5, 6}, 1);
      auto& bias = list.add({.name = "b", .shape = {5}, .kind = Parameter::Kind::buffer});
      bias.value = there(at::tensor({0.0, 0.3, 0.0, 0.0, -0.2}, at::kDouble));
      const auto x = random({9, 6}, 2).set_requires_grad(true), upstream = random({9, top_k}, 3);
      const auto routing = route(x, LinearRouterParameters{&weight, &bias, {.top_k = top_k, .renormalises = renormalises}});
      backward((routing.weight.view({9, top_k}) * upstream).sum());
      const auto y = x.detach().clone().set_requires_grad(true), w = weight.value.detach().clone().set_requires_grad(true);
      const auto probabilities = at::softmax(at::matmul(y, w.t()), -1);
      auto sum = there(at::zeros({}, at::kDouble));
      for (int64_t token = 0; token < 9; ++token) {
        const auto order = (probabilities[token] + bias.value).argsort(0, /*descending=*/true).narrow(0, 0, top_k);
        EXPECT_TRUE(at::equal(routing.choice.view({9, top_k})[token], order));
        auto mixed = probabilities[token].index_select(0, order);
        if (renormalises) mixed = mixed / mixed.sum();
        sum = sum + (mixed * upstream[token]).sum();
      }
      backward(sum);
      expect_close(x.grad(), y.grad());
      expect_close(weight.grad, w.grad());
    }
  }
}

// The oracle: slot by slot, the heaviest first, of equals the first.
TEST(Capacity, each_expert_keeps_its_heaviest_slots) {
  constexpr int64_t kExperts = 4, kSlots = 40;
  for (const int64_t capacity : {0, 1, 6, 9, 40}) {
    const auto choice = (at::arange(kSlots, at::kLong).square() * 7 + 3).remainder(kExperts + 1);  // the last class is none of them
    const auto weight = (at::arange(kSlots, at::kDouble) * 37).remainder(11) / 11;
    const auto kept = within_capacity(there(choice), there(weight), kExperts, capacity).cpu();
    std::vector<int64_t> order(kSlots), expected(kSlots, kExperts);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return weight[a].item<double>() > weight[b].item<double>(); });
    std::vector<int64_t> taken(kExperts, 0);
    for (const int64_t slot : order) {
      const auto expert = choice[slot].item<int64_t>();
      if (expert < kExperts && taken[static_cast<size_t>(expert)]++ < capacity) expected[static_cast<size_t>(slot)] = expert;
    }
    EXPECT_TRUE(at::equal(kept, at::tensor(expected))) << capacity;
  }
}

}  // namespace
}  // namespace ingot::layers
