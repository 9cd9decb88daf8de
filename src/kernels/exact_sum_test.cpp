#include "kernels/exact_sum.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace ingot::kernels {
namespace {

// Of sizes from 1e-12 to 1, as gradients have them.
at::Tensor gradients(int64_t count, int64_t seed) {
  at::manual_seed(static_cast<uint64_t>(seed));
  return at::randn({count}).mul_(at::pow(10, at::rand({count}).mul_(-12))).to(at::kFloat);
}

TEST(ExactSum, rounds_to_the_nearest_multiple) {
  EXPECT_EQ(rounded(1.0 + std::ldexp(1, -50), -48), 1.0);
  EXPECT_EQ(rounded(1.0 + std::ldexp(3, -50), -48), 1.0 + std::ldexp(1, -48));
  EXPECT_EQ(rounded(std::ldexp(1, -49), -48), 0);                   // a tie goes to the even one
  EXPECT_EQ(rounded(std::ldexp(3, -49), -48), std::ldexp(2, -48));  // and this one, too
  EXPECT_EQ(rounded(-7.25, -48), -7.25);
  const auto terms = gradients(1000, 1);
  const auto sum = at::empty({1000}, at::kDouble);
  round_into(sum, terms, kGradientExponent, false);
  for (int64_t i = 0; i < 1000; ++i) {
    const double term = terms.const_data_ptr<float>()[i], got = sum.const_data_ptr<double>()[i];
    EXPECT_EQ(got, std::ldexp(std::nearbyint(std::ldexp(term, 48)), -48)) << term;
  }
}

TEST(ExactSum, of_gradients_has_the_same_bits_in_any_order_and_in_any_groups) {
  constexpr int64_t kTerms = 24, kElements = 5003;
  std::vector<at::Tensor> terms;
  for (int64_t i = 0; i < kTerms; ++i) terms.push_back(gradients(kElements, i).to(i % 3 == 0 ? at::kDouble : at::kFloat));
  std::mt19937 random(7);
  at::Tensor expected;
  for (int trial = 0; trial < 20; ++trial) {
    std::shuffle(terms.begin(), terms.end(), random);
    const auto ranks = static_cast<size_t>(trial % 5 + 1);
    std::vector<at::Tensor> sums(ranks);
    for (size_t i = 0; i < terms.size(); ++i) {
      auto& sum = sums[i % ranks];
      const bool adds = sum.defined();
      if (!adds) sum = at::full({kElements}, std::nan(""), at::kDouble);
      round_into(sum, terms[i], kGradientExponent, adds);
    }
    const auto total = at::stack(sums).sum(0);
    if (trial == 0) expected = total;
    EXPECT_TRUE(at::equal(total, expected)) << "trial " << trial;
  }
  auto plain = at::zeros({kElements}, at::kDouble);
  for (const auto& term : terms) plain += term;
  EXPECT_LT((plain - expected).abs().max().item<double>(), kTerms * std::ldexp(1, -49));
}

at::Tensor square_sum(const at::Tensor& x) { return square_sums({x})[0]; }

TEST(SquareSum, of_slices_adds_up_to_the_bits_of_the_whole) {
  std::mt19937 random(3);
  for (const int64_t count : {1, 31, 32, 33, 1000, 16384, 16385, 100003}) {
    const auto x = gradients(count, count);
    const auto whole = square_sum(x);
    EXPECT_NEAR(whole.sum().item<double>() / x.to(at::kDouble).square().sum().item<double>(), 1, 1e-12) << count;
    for (int trial = 0; trial < 5; ++trial) {
      std::vector<at::Tensor> slices;
      for (int64_t from = 0; from < count;) {
        const int64_t to = std::min<int64_t>(count, from + kSquareBlock * std::uniform_int_distribution<int64_t>(1, 900)(random));
        slices.push_back(square_sum(x.slice(0, from, to)));
        from = to;
      }
      std::shuffle(slices.begin(), slices.end(), random);
      EXPECT_TRUE(at::equal(at::stack(slices).sum(0), whole)) << count;
    }
    // Where there is no kernel, operators do the same.
    EXPECT_TRUE(at::equal(square_sum(x.to(at::kDouble)), whole)) << count;
  }
}

TEST(SquareSum, of_nothing_is_nothing_and_of_what_is_not_finite_is_nan) {
  EXPECT_TRUE(at::equal(square_sum(at::empty({0})), at::zeros({kSquareParts}, at::kDouble)));
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const auto dtype : {at::kFloat, at::kDouble}) {
      auto x = at::ones({100}, dtype);
      x[77] = bad;
      EXPECT_FALSE(square_sum(x).isfinite().all().item<bool>());
    }
}

}  // namespace
}  // namespace ingot::kernels
