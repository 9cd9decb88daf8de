// Against the formula of the paper written out with autograd over the log-probabilities of whole answers.
#include "layers/preference_loss.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/differentiable.h"
#include "layers/test_parameters.h"

namespace ingot::layers {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// Two rows of nine tokens: the first has two pairs, the second one and padding.
PreferencePairs pairs_of_two_rows() {
  const auto sign = at::tensor(std::vector<double>{1, 1, -1, -1, 1, -1, -1, -1, -1, 1, 1, 1, -1, -1, 0, 0, 0, 0}).view({2, 9});
  const auto first = at::tensor(std::vector<int64_t>{0, 0, 0, 0, 4, 4, 4, 4, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0}).view({2, 9});
  auto reference = at::full({2, 9}, kNone, at::kDouble);
  reference[0][0] = 0.7, reference[0][4] = -2.5, reference[1][0] = 0;
  return {test::there(sign), test::there(first), test::there(reference)};
}

double softplus(double x) { return std::log1p(std::exp(x)); }

TEST(PreferenceLoss, is_that_of_the_paper_and_its_weights_are_the_derivatives) {
  const auto pairs = pairs_of_two_rows();
  const auto losses = test::random({2, 9}, 3).to(at::kDouble).abs();
  for (const double smoothing : {0.0, 0.2}) {
    const PreferenceSettings settings{.beta = 0.3, .label_smoothing = smoothing};
    const auto value_of = [&](const at::Tensor& x) {
      const auto l = x.cpu();
      const auto sum = [&](int64_t row, int64_t from, int64_t count) { return -l[row].narrow(0, from, count).sum().item<double>(); };
      double value = 0;
      for (const double h :
           {0.3 * (sum(0, 0, 2) - sum(0, 2, 2) - 0.7), 0.3 * (sum(0, 4, 1) - sum(0, 5, 4) + 2.5), 0.3 * (sum(1, 0, 3) - sum(1, 3, 2))})
        value += (1 - smoothing) * softplus(-h) + smoothing * softplus(h);
      return value;
    };
    const auto found = preference_loss(losses, pairs, settings, {}, true, {});
    EXPECT_NEAR(found.value.item<double>(), value_of(losses), 1e-12);
    for (int64_t row = 0; row < 2; ++row)
      for (int64_t token = 0; token < 9; ++token) {
        auto more = losses.clone(), less = losses.clone();
        more[row][token] += 1e-5, less[row][token] -= 1e-5;
        EXPECT_NEAR(found.weights[row][token].item<double>(), (value_of(more) - value_of(less)) / 2e-5, 1e-9) << row << " " << token;
      }
  }
}

TEST(PreferenceLoss, counts_pairs_in_the_right_order_once_of_all_ranks_that_share_rows) {
  const auto pairs = pairs_of_two_rows();
  const auto losses = at::zeros({2, 9}, pairs.sign.options());  // margins are 0: only that of the reference counts
  const auto totals = at::zeros({2}, pairs.sign.options().dtype(at::kFloat));
  const auto none = preference_loss(losses, pairs, {.beta = 2}, {}, false, totals);
  EXPECT_EQ(none.value.item<double>(), 0);
  EXPECT_EQ(totals.abs().sum().item<double>(), 0);
  preference_loss(losses, pairs, {.beta = 2}, {}, true, totals);
  EXPECT_EQ(totals.cpu()[0].item<double>(), 1);  // -0.7 and 0 are not above 0, 2.5 is
  EXPECT_NEAR(totals.cpu()[1].item<double>(), 2 * (2.5 - 0.7), 1e-6);
}

TEST(PreferenceLoss, of_tokens_that_lie_on_two_ranks_is_the_same) {
  const auto pairs = pairs_of_two_rows();
  const auto losses = test::random({2, 9}, 5).to(at::kDouble).abs();
  const PreferenceSettings settings{.beta = 0.3};
  const auto whole = preference_loss(losses, pairs, settings, {}, true, {});
  const auto part = [](const at::Tensor& x, int64_t rank) { return rank == 0 ? x.narrow(1, 0, 4) : x.narrow(1, 4, 5); };
  for (const int64_t rank : {0, 1}) {
    const auto other =
        at::zeros_like(pairs.reference).scatter_add_(1, part(pairs.first, 1 - rank), -part(pairs.sign, 1 - rank) * part(losses, 1 - rank));
    const PreferencePairs own{part(pairs.sign, rank), part(pairs.first, rank), pairs.reference};
    const auto found =
        preference_loss(part(losses, rank), own, settings, [&](const at::Tensor& margins) { margins.add_(other); }, rank == 0, {});
    EXPECT_NEAR(found.value.item<double>(), rank == 0 ? whole.value.item<double>() : 0, 1e-12);
    test::expect_close(found.weights, part(whole.weights, rank), 1e-12);
  }
}

// Through the head: the gradient of the loss by hidden states and weight is what autograd finds of the formula.
TEST(PreferenceLoss, of_a_head_has_the_gradients_of_the_formula) {
  const auto pairs = pairs_of_two_rows();
  ParameterList list;
  auto& head = test::add(list, "head", {11, 6}, 7);
  const auto hidden = test::random({2, 9, 6}, 8).set_requires_grad(true);
  auto targets = test::there(at::arange(18, at::kLong).view({2, 9}).remainder(11)).clone();
  targets[0][1] = -100, targets[1][8] = -100;
  const PreferenceSettings settings{.beta = 0.4};
  HeadRule rule;
  rule.logit_cap = 3;
  rule.weigh = [&](const at::Tensor& losses) { return preference_loss(losses, pairs, settings, {}, true, {}); };
  const auto loss = head_loss(hidden, head, targets, 0.5, rule);
  test::backward(loss);
  const auto h = hidden.detach().clone().set_requires_grad(true), w = head.value.detach().clone().set_requires_grad(true);
  const auto logits = 3 * at::tanh(at::matmul(h, w.t()) / 3);
  const auto by_token = -at::log_softmax(logits, 2).gather(2, targets.clamp_min(0).unsqueeze(2)).squeeze(2) * targets.ge(0);
  const auto margin = [&](int64_t row, int64_t at, int64_t chosen, int64_t rejected) {
    return -by_token[row].narrow(0, at, chosen).sum() + by_token[row].narrow(0, at + chosen, rejected).sum();
  };
  const auto expected = -(at::log_sigmoid(0.4 * (margin(0, 0, 2, 2) - 0.7)) + at::log_sigmoid(0.4 * (margin(0, 4, 1, 4) + 2.5)) +
                          at::log_sigmoid(0.4 * margin(1, 0, 3, 2))) *
                        0.5;
  test::backward(expected);
  test::expect_close(loss.detach(), expected.detach());
  test::expect_close(hidden.grad(), h.grad());
  test::expect_close(head.grad, w.grad());
}

}  // namespace
}  // namespace ingot::layers
