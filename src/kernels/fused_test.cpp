// What operators (operator_test.cpp) do not call: documents, partly rotated heads, unused outputs, rows of one element, updates.
#include <gtest/gtest.h>

#include "kernels/cross_entropy.h"
#include "kernels/differentiable.h"
#include "kernels/qk_norm.h"
#include "kernels/reference/reference.h"
#include "kernels/stochastic_rounding.h"
#include "kernels/update.h"

namespace ingot::kernels {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<Tensors(const Tensors&)>;

at::Tensor random(at::IntArrayRef sizes, int64_t seed) {
  auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
  return at::randn(sizes, generator, at::kDouble);
}

// Outputs of `operation`, then gradients of every input for fixed random upstream gradients.
Tensors outputs_and_gradients(const Operation& operation, const Tensors& inputs) {
  Tensors leaves;
  for (const auto& x : inputs) leaves.push_back(x.detach().clone().set_requires_grad(true));
  const auto outputs = operation(leaves);
  Tensors upstream, all;
  for (size_t i = 0; i < outputs.size(); ++i)
    upstream.push_back(random(outputs[i].sizes(), 1000 + static_cast<int64_t>(i)).to(outputs[i].scalar_type()));
  kernels::backward(outputs, upstream);
  for (const auto& x : outputs) all.push_back(x.detach());
  for (const auto& x : leaves) all.push_back(x.grad());
  return all;
}

// `dtypes` says how each input is stored in the fused run.
void expect_same(const Operation& fused, const Operation& reference, const Tensors& inputs, const std::vector<at::ScalarType>& dtypes,
                 double tolerance) {
  Tensors narrow, wide;
  for (size_t i = 0; i < inputs.size(); ++i) {
    narrow.push_back(inputs[i].to(dtypes[i]));
    wide.push_back(narrow.back().to(at::kDouble));  // the same values
  }
  const auto got = outputs_and_gradients(fused, narrow), want = outputs_and_gradients(reference, wide);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_TRUE(got[i].defined()) << "tensor " << i;
    const double largest = want[i].abs().max().item<double>();
    const double difference = (got[i].to(at::kDouble) - want[i]).abs().max().item<double>();
    EXPECT_LE(difference, tolerance * (largest + 1e-3)) << "tensor " << i << " of " << got.size();
  }
}

struct Case {
  at::ScalarType dtype;
  double tolerance;
};
class Fused : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Fused, ::testing::Values(Case{at::kFloat, 2e-5}, Case{at::kBFloat16, 2e-2}),
                         [](const auto& info) { return info.param.dtype == at::kFloat ? "fp32" : "bf16"; });

TEST_P(Fused, rms_norm_matches_the_composition) {
  const auto [dtype, tolerance] = GetParam();
  for (const int64_t width : {1, 5, 8, 24, 67}) {
    const Operation fused = [&, d = dtype](const Tensors& in) -> Tensors { return {rms_norm(in[0], in[1], 1e-5, d)}; };
    const Operation reference = [](const Tensors& in) -> Tensors { return {reference::rms_norm(in[0], in[1], 1e-5, at::kDouble)}; };
    expect_same(fused, reference, {random({3, 70, width}, 1), random({width}, 2)}, {at::kFloat, at::kFloat}, tolerance);
  }
}

TEST_P(Fused, norm_alone_reaches_the_residual_when_the_sum_is_not_used) {
  const auto [dtype, tolerance] = GetParam();
  expect_same([&, d = dtype](const Tensors& in) -> Tensors { return {join_residual_and_norm(in[0], in[1], {}, in[2], 1e-5, d).second}; },
              [&](const Tensors& in) -> Tensors { return {reference::rms_norm(in[0] + in[1], in[2], 1e-5, at::kDouble)}; },
              {random({2, 33, 12}, 1), random({2, 33, 12}, 2), random({12}, 3)}, {at::kFloat, dtype, at::kFloat}, tolerance);
}

TEST_P(Fused, gated_units_match_the_composition_with_weights) {
  const auto [dtype, tolerance] = GetParam();
  for (const auto& [width, gate] : std::vector<std::pair<int64_t, Gate>>{{3, Gate::silu},
                                                                         {8, Gate::silu},
                                                                         {21, Gate::silu},
                                                                         {3, Gate::gelu_tanh},
                                                                         {21, Gate::gelu_tanh},
                                                                         {3, Gate::clamped},
                                                                         {21, Gate::clamped}}) {
    const double wide_enough_to_clamp = gate == Gate::clamped ? 6 : 1;
    const auto x = (random({19, 2 * width}, 1) * wide_enough_to_clamp).to(dtype), weight = random({19}, 2).to(at::kFloat),
               grad = random({19, width}, 3).to(dtype);
    const auto forward = glu_forward(x, weight, gate), wide = glu_forward(x.to(at::kDouble), weight.to(at::kDouble), gate);
    const auto error_of = [](const at::Tensor& got, const at::Tensor& expected) {
      return ((got.to(at::kDouble) - expected).abs().max() / expected.abs().max().clamp_min(1)).item<double>();
    };
    EXPECT_LT(error_of(forward, wide), tolerance * 10);
    const auto [gx, gw] = glu_backward(grad, x, weight, gate);
    const auto [wx, ww] = glu_backward(grad.to(at::kDouble), x.to(at::kDouble), weight.to(at::kDouble), gate);
    EXPECT_LT(error_of(gx, wx), tolerance * 10);
    EXPECT_LT(error_of(gw, ww), tolerance * 10);
  }
}

RotaryTable table_for(int64_t rows, int64_t seq, int64_t half, at::ScalarType dtype) {
  const auto angles = random({rows, seq, half}, 77) * 3;
  return {angles.cos().to(at::kFloat).to(dtype), angles.sin().to(at::kFloat).to(dtype)};
}

TEST_P(Fused, split_and_rotate_matches_the_composition) {
  const auto [dtype, tolerance] = GetParam();
  for (const auto& [head_dim, half, table_rows] : std::vector<std::tuple<int, int, int>>{{12, 6, 1}, {16, 4, 2}, {10, 3, 1}, {64, 32, 2}}) {
    const auto run = [&](auto&& kernel, const Tensors& in, at::ScalarType t) -> Tensors {
      auto [q, k, v] = kernel(in[0], 4, 2, head_dim, table_for(table_rows, 11, half, t));
      return {q, k, v};
    };
    expect_same([&](const Tensors& in) { return run(split_and_rotate, in, at::kFloat); },
                [&](const Tensors& in) { return run(reference::split_and_rotate, in, at::kDouble); }, {random({2, 11, 8 * head_dim}, 5)},
                {dtype}, tolerance);
  }
}

TEST_P(Fused, qk_norm_matches_the_composition_also_over_all_heads_and_with_partly_rotated_ones) {
  const auto [dtype, tolerance] = GetParam();
  constexpr int64_t kHeads = 4, kKvHeads = 2;
  for (const bool over_all : {false, true})
    for (const auto& [head_dim, half, table_rows] :
         std::vector<std::tuple<int, int, int>>{{12, 6, 1}, {16, 4, 2}, {10, 3, 1}, {64, 32, 2}}) {
      const auto run = [&, d = head_dim, h = half, rows = table_rows](const Tensors& in, at::ScalarType t) -> Tensors {
        auto [q, k, v] = split_norm_and_rotate(in[0], kHeads, kKvHeads, d, QkNorm{in[1], in[2], 1e-6}, table_for(rows, 11, h, t));
        return {q, k, v};
      };
      expect_same([&](const Tensors& in) { return run(in, at::kFloat); }, [&](const Tensors& in) { return run(in, at::kDouble); },
                  {random({2, 11, 8 * head_dim}, 5), random({over_all ? kHeads * head_dim : head_dim}, 6),
                   random({over_all ? kKvHeads * head_dim : head_dim}, 7)},
                  {dtype, at::kFloat, at::kFloat}, tolerance);
    }
}

// In fp32 the fused kernel rounds like the norm and the rotation that it is made of. Of a gradient the compiler may contract another
// product and sum.
TEST(QkNorm, gives_the_bits_of_the_kernels_that_it_joins) {
  constexpr int64_t kHeads = 4, kKvHeads = 2, kHeadDim = 64;
  const auto table = table_for(1, 37, 32, at::kFloat);
  const Operation fused = [&](const Tensors& in) -> Tensors {
    auto [q, k, v] = split_norm_and_rotate(in[0], kHeads, kKvHeads, kHeadDim, QkNorm{in[1], in[2], 1e-6}, table);
    return {q, k, v};
  };
  const Operation composed = [&](const Tensors& in) -> Tensors {
    const auto parts = in[0].unflatten(-1, {-1, kHeadDim}).split_with_sizes({kHeads, kKvHeads, kKvHeads}, 2);
    const auto packed =
        device::cat({rms_norm(parts[0], in[1], 1e-6, at::kFloat), rms_norm(parts[1], in[2], 1e-6, at::kFloat), parts[2]}, 2);
    auto [q, k, v] = split_and_rotate(packed.flatten(2), kHeads, kKvHeads, kHeadDim, table);
    return {q, k, v};
  };
  const Tensors inputs = {random({2, 37, 8 * kHeadDim}, 1).to(at::kFloat), random({kHeadDim}, 2).to(at::kFloat),
                          random({kHeadDim}, 3).to(at::kFloat)};
  const auto got = outputs_and_gradients(fused, inputs), want = outputs_and_gradients(composed, inputs);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(at::equal(got[i], want[i])) << "q, k, v: " << i;
  EXPECT_TRUE(at::allclose(got[3], want[3], 1e-6, 1e-6)) << "gradient of the projection";
}

TEST_P(Fused, cca_mix_matches_the_composition_also_across_documents) {
  const auto [dtype, tolerance] = GetParam();
  for (const bool documents : {false, true}) {
    for (const auto& [heads, kv_heads, head_dim, half] :
         std::vector<std::tuple<int, int, int, int>>{{4, 2, 16, 4}, {4, 1, 6, 3}, {2, 2, 10, 2}, {8, 2, 64, 16}}) {
      const CcaShape shape{heads, kv_heads, head_dim};
      const int64_t latent = shape.latent(), seq = 45;
      auto starts = at::zeros({3, seq}, at::kBool);
      for (const int64_t at : {0, 1, 7, 8, 44}) starts.select(1, at).fill_(true);
      const auto run = [&](auto&& kernel, const Tensors& in, at::ScalarType t) -> Tensors {
        auto [q, k, v] = kernel(in[0], shape, CcaWeights{in[1], in[2], in[3], in[4], in[5]}, table_for(documents ? 3 : 1, seq, half, t),
                                documents ? starts : at::Tensor(), CcaTail{});
        return {q, k, v};
      };
      expect_same([&](const Tensors& in) { return run(cca_mix, in, at::kFloat); },
                  [&](const Tensors& in) { return run(reference::cca_mix, in, at::kDouble); },
                  {random({3, seq, latent + kv_heads * head_dim}, 1), random({latent, 1, 2}, 2), random({latent}, 3),
                   random({latent, head_dim, 2}, 4), random({latent}, 5), random({kv_heads}, 6)},
                  {dtype, at::kFloat, at::kFloat, at::kFloat, at::kFloat, at::kFloat}, tolerance);
    }
  }
}

TEST(CrossEntropy, matches_log_softmax_and_its_gradient) {
  for (const int64_t vocab : {2, 7, 8, 101, 513}) {
    auto logits = (random({21, vocab}, 1) * 4).to(at::kFloat);
    auto targets = at::arange(21, at::kLong).remainder(vocab);
    targets[4] = -100;
    const auto wide = logits.to(at::kDouble);
    const auto chosen = targets.clamp_min(0).unsqueeze(1), counted = targets.ge(0);
    const auto losses = -at::log_softmax(wide, 1).gather(1, chosen).squeeze(1) * counted;
    const auto gradient = (at::softmax(wide, 1) - at::zeros_like(wide).scatter(1, chosen, 1.0)) * counted.unsqueeze(1) * 0.25;
    const auto untouched = logits.clone();
    EXPECT_LT((cross_entropy(logits, targets, 0.25, {}) - losses).abs().max().item<double>(), 1e-5);
    EXPECT_TRUE(at::equal(untouched, logits));
    for (const int64_t stride : {vocab, vocab + 3}) {
      auto narrow = at::full({21, stride}, 7, at::kBFloat16);
      const auto bf16 = narrow.narrow(1, 0, vocab);
      EXPECT_LT((cross_entropy(logits.clone(), targets, 0.25, bf16) - losses).abs().max().item<double>(), 1e-5);
      EXPECT_LT(((bf16 - gradient).abs() - gradient.abs() / 256).max().item<double>(), 1e-6);
      EXPECT_TRUE(narrow.narrow(1, vocab, stride - vocab).eq(7).all().item<bool>());
    }
    EXPECT_LT((cross_entropy(logits, targets, 0.25, logits) - losses).abs().max().item<double>(), 1e-5);
    EXPECT_LT((logits - gradient).abs().max().item<double>(), 1e-6);
  }
}

// fp64 by autograd; fp32 from one kernel, and from two halves of the vocabulary.
TEST(CrossEntropy, z_loss_is_in_the_gradient_and_not_in_the_loss) {
  constexpr double kZ = 0.05;
  auto targets = at::arange(21, at::kLong).remainder(40);
  targets[4] = -100;
  const auto x = (random({21, 40}, 1) * 4).set_requires_grad(true);
  const auto counted = targets.ge(0), log_sum = x.logsumexp(1);
  const auto losses = at::cross_entropy_loss(x, targets, {}, at::Reduction::None, -100);
  backward({(losses + kZ * (log_sum * counted).square()).sum() * 0.25});
  const auto check = [&](const at::Tensor& loss, const at::Tensor& gradient, double tolerance) {
    EXPECT_LT((loss - losses).abs().max().item<double>(), tolerance);
    EXPECT_LT((gradient - x.grad()).abs().max().item<double>(), tolerance);
  };
  for (const auto dtype : {at::kDouble, at::kFloat}) {
    const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-5;
    auto logits = x.detach().to(dtype, false, true);
    const auto loss = cross_entropy(logits, targets, 0.25, logits, kZ);
    check(loss, logits, tolerance);
    std::vector<at::Tensor> halves, labels, statistics;
    for (const int64_t half : {0, 1}) {
      halves.push_back(x.detach().narrow(1, 20 * half, 20).to(dtype).contiguous().clone());
      const auto own = targets - 20 * half;
      labels.push_back(at::where(own.ge(0).logical_and(own.lt(20)), own, -1));
      statistics.push_back(cross_entropy_statistics(halves.back(), labels.back(), true));
    }
    at::Tensor of_halves;
    for (const int64_t half : {0, 1}) {
      const auto [found, factors] = combine_statistics(at::stack(statistics), half, kZ);
      of_halves = found.masked_fill(targets.lt(0), 0);
      auto& part = halves[static_cast<size_t>(half)];
      const auto& label = labels[static_cast<size_t>(half)];
      auto narrow = at::empty_like(part, at::kBFloat16);
      cross_entropy_gradient(part.clone(), label, factors, targets.lt(0), 0.25, narrow);
      cross_entropy_gradient(part, label, factors, targets.lt(0), 0.25, part);
      EXPECT_TRUE(at::equal(narrow, part.to(at::kBFloat16)));
    }
    check(of_halves, device::cat(halves, 1), tolerance);
  }
}

TEST(CrossEntropy, a_nan_logit_gives_a_nan_loss) {
  auto logits = at::zeros({1, 40});
  logits[0][17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(cross_entropy(logits, at::zeros({1}, at::kLong), 1, logits).item<float>()));
}

// Of fp32 or fp64: [master, gradient, first moment, second moment].
void adamw_update(const Tensors& x, const at::Tensor& value, const AdamwStep& step, uint32_t key = 0) {
  kernels::adamw_update({{x[0], x[1], x[2], x[3], value, /*lr=*/1e-2, /*weight_decay=*/0.1, key}}, step);
}

TEST(Update, fused_adamw_and_muon_steps_match_fp64) {
  for (const int64_t count : {1, 13, 1000}) {
    Tensors narrow, wide;
    for (int64_t i = 0; i < 4; ++i) narrow.push_back(random({count}, i).to(at::kFloat).abs());
    for (const auto& x : narrow) wide.push_back(x.to(at::kDouble));
    auto value = at::zeros({count}, at::kBFloat16);
    const AdamwStep step{0.9, 0.95, 1e-8, 0.5, 3};
    adamw_update(narrow, value, step);
    adamw_update(wide, wide[0], step);
    EXPECT_LT((narrow[0] - wide[0]).abs().max().item<double>(), 1e-6);
    EXPECT_TRUE(at::equal(value, narrow[0].to(at::kBFloat16)));
    const auto direction = momentum_update({{narrow[2], narrow[1]}}, {0.95, 0.5, true})[0],
               exact = momentum_update({{wide[2], wide[1]}}, {0.95, 0.5, true})[0];
    EXPECT_LT((direction - exact).abs().max().item<double>(), 1e-6);
    apply_directions({{narrow[0], direction, value, 0.99, 0.1}});
    apply_directions({{wide[0], exact, wide[0], 0.99, 0.1}});
    EXPECT_LT((narrow[0] - wide[0]).abs().max().item<double>(), 1e-6);
  }
}

// The fp32 update, and then the moments' rounding by ATen's operations.
TEST(Update, bf16_moments_are_those_of_fp32_rounded_stochastically) {
  for (const int64_t count : {1, 13, 100000}) {
    std::vector<at::Tensor> fp32;
    for (int64_t i = 0; i < 4; ++i) fp32.push_back(random({count}, i).to(at::kFloat).abs());
    for (const size_t moment : {2, 3}) fp32[moment] = fp32[moment].to(at::kBFloat16).to(at::kFloat);
    std::vector<at::Tensor> bf16 = {fp32[0].clone(), fp32[1], fp32[2].to(at::kBFloat16), fp32[3].to(at::kBFloat16)};
    const AdamwStep step{0.9, 0.999, 1e-8, 0.5, 3};
    adamw_update(fp32, fp32[0], step);
    adamw_update(bf16, bf16[0], step, 0x1234567);
    EXPECT_TRUE(at::equal(bf16[0], fp32[0])) << count;
    EXPECT_TRUE(at::equal(bf16[2], round_stochastically(fp32[2], 0x1234567))) << count;
    EXPECT_TRUE(at::equal(bf16[3], round_stochastically(fp32[3], ~0x1234567U))) << count;
    auto momentum = fp32[2].to(at::kBFloat16), wide = momentum.to(at::kFloat);
    const auto direction = momentum_update({{momentum, fp32[1], 77}}, {0.95, 0.5, true})[0],
               expected = momentum_update({{wide, fp32[1]}}, {0.95, 0.5, true})[0];
    EXPECT_TRUE(at::equal(direction, expected)) << count;
    EXPECT_TRUE(at::equal(momentum, round_stochastically(wide, 77))) << count;
  }
}

TEST(StochasticRounding, is_up_as_often_as_the_number_is_near_it) {
  constexpr int64_t kKeys = 40000;
  for (const double share : {0.0, 1.0 / 256, 0.1, 0.5, 0.9, 1 - 1.0 / 65536}) {
    for (const double base : {1.0, -3.0, 1e-30}) {
      const double ulp = std::ldexp(1.0, std::ilogb(base) - 7), exact = base + std::copysign(share * ulp, base);
      const auto x = at::full({1}, exact, at::kFloat);
      const double low = at::full({1}, base, at::kBFloat16).item<float>() == static_cast<float>(base) ? base : 0;
      if (low == 0) continue;  // base is one of bf16
      int64_t up = 0;
      for (int64_t key = 0; key < kKeys; ++key)
        up += round_stochastically(x, rounding_key("first_moment.w", key)).to(at::kDouble).item<double>() != base;
      const double expected = (x.to(at::kDouble).item<double>() - base) / std::copysign(ulp, base);
      EXPECT_NEAR(static_cast<double>(up) / kKeys, expected, 4 * std::sqrt(expected * (1 - expected) / kKeys) + 1e-9)
          << base << " " << share;
    }
  }
}

// One key, all numbers of a tensor: what a step does.
TEST(StochasticRounding, keeps_the_mean_of_a_tensor) {
  const int64_t count = int64_t{1} << 22;
  const auto x = random({count}, 5).to(at::kFloat);
  for (const uint32_t key : {0U, 1U, 0x80000000U, rounding_key("w", 1)}) {
    const auto exact = x.to(at::kDouble), error = round_stochastically(x, key).to(at::kDouble) - exact;
    // Uncorrelated with the number and with the neighbour's error; each within 5 standard deviations.
    const double deviation = error.square().mean().sqrt().item<double>(), root = std::sqrt(static_cast<double>(count));
    EXPECT_LT(std::abs(error.mean().item<double>()) / deviation, 5 / root) << key;
    EXPECT_LT(std::abs((error * exact).mean().item<double>()) / deviation, 5 / root * 2) << key;
    EXPECT_LT(std::abs((error.slice(0, 1) * error.slice(0, 0, -1)).mean().item<double>()) / (deviation * deviation), 5 / root) << key;
    EXPECT_LT((error / exact).abs().max().item<double>(), 1.0 / 128) << key;
  }
}

TEST(StochasticRounding, keeps_what_is_not_finite_and_what_bf16_has) {
  const float infinity = std::numeric_limits<float>::infinity();
  auto special = at::tensor({infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 0.0f, -0.0f, 1.5f}, at::kFloat);
  special = device::cat({special, at::full({1}, 0x7fffffff, at::kInt).view(at::kFloat)});
  for (const uint32_t key : {0U, 12345U, 0xffffffffU}) {
    const auto rounded = round_stochastically(special, key).to(at::kFloat);
    EXPECT_TRUE(at::equal(rounded.nan_to_num(7, 8, 9), special.nan_to_num(7, 8, 9))) << key;
    auto momentum = at::zeros({7}, at::kBFloat16);
    momentum_update({{momentum, special, key}}, {0, 1, false});
    EXPECT_TRUE(at::equal(momentum.to(at::kFloat).nan_to_num(7, 8, 9), special.nan_to_num(7, 8, 9))) << key;
  }
}

}  // namespace
}  // namespace ingot::kernels
