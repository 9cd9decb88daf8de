// Against scores written out: those of every head are multiplied by its gamma.
#include "layers/score_clip.h"

#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "layers/attention.h"
#include "layers/test_parameters.h"

namespace ingot::layers {
namespace {

TEST(ScoreClip, multiplies_the_scores_of_every_head_by_its_gamma) {
  constexpr int64_t kHeads = 6, kKvHeads = 2, kDim = 4, kHidden = 10;
  ParameterList list;
  auto &q = test::add(list, "q", {kHeads * kDim, kHidden}, 1), &k = test::add(list, "k", {kKvHeads * kDim, kHidden}, 2);
  auto &q_bias = test::add(list, "q_bias", {kHeads * kDim}, 3), &k_bias = test::add(list, "k_bias", {kKvHeads * kDim}, 4);
  const auto x = test::random({7, kHidden}, 5);
  const at::NoGradGuard no_grad;
  const auto scores = [&] {
    const auto queries = (at::matmul(x, q.value.t()) + q_bias.value).view({7, kHeads, kDim});
    const auto keys = (at::matmul(x, k.value.t()) + k_bias.value).view({7, kKvHeads, kDim}).repeat_interleave(kHeads / kKvHeads, 1);
    return at::einsum("ihd,jhd->hij", {queries, keys});
  };
  const auto before = scores();
  const auto gamma = at::tensor(std::vector<double>{1, 0.5, 0.3, 1, 1, 0.01});
  const auto all = clip_heads(gamma, kKvHeads, kDim, {&q, &q_bias}, {&k, &k_bias});
  ASSERT_EQ(all.size(), 4);
  for (const auto& [parameter, factors] : all) {
    const auto there = factors.to(parameter->value.options());
    parameter->value.mul_(parameter->value.dim() == 2 ? there.unsqueeze(1) : there);
  }
  test::expect_close(scores(), before * gamma.to(before.options()).view({kHeads, 1, 1}));
  EXPECT_EQ(clip_heads(gamma, kKvHeads, kDim, {&q, nullptr}, {&k, nullptr}).size(), 2) << "without biases";
}

TEST(ScoreClip, watches_the_largest_log_sum_exp_of_all_passes) {
  const auto q = test::random({2, 9, 4, 8}, 1), k = test::random({2, 9, 2, 8}, 2), v = test::random({2, 9, 2, 8}, 3);
  auto largest = at::full({4}, -std::numeric_limits<double>::infinity(), q.options().dtype(at::kFloat));
  Sequences sequences(2, 9, at::Tensor(), 0, device::test_device());
  at::Tensor expected;
  for (const double scale : {2.0, 0.1, 3.0}) {
    attention(q, k, v, scale, 0, sequences, {}, {}, largest);
    const auto seen = kernels::reference::attention_forward(q, k, v, scale, {}).log_sum_exp.amax(at::IntArrayRef({0, 2}));
    expected = expected.defined() ? at::maximum(expected, seen) : seen;
    test::expect_close(largest.to(at::kDouble), expected.to(at::kDouble), 1e-6);
  }
}

}  // namespace
}  // namespace ingot::layers
