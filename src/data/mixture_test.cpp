#include "data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace ingot::data {
namespace {

// Largest difference between the samples of a source and its exact share, over the first `samples` samples.
double worst_error(const std::vector<double>& weights, int64_t samples) {
  const Mixture mixture(weights);
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<int64_t> seen(weights.size(), 0);
  double worst = 0;
  for (int64_t i = 0; i < samples; ++i) {
    const auto pick = mixture.at(i);
    EXPECT_EQ(pick.index, seen[pick.source]++) << "sample " << i;
    for (size_t s = 0; s < weights.size(); ++s)
      worst = std::max(worst, std::abs(static_cast<double>(seen[s]) - static_cast<double>(i + 1) * weights[s] / total));
  }
  EXPECT_EQ(mixture.counts(samples), seen);
  return worst;
}

TEST(Mixture, running_shares_of_up_to_four_sources_stay_within_one_sample) {
  EXPECT_LT(worst_error({1}, 1000), 1e-9);
  EXPECT_LT(worst_error({0.7, 0.3}, 20000), 0.51);
  EXPECT_LT(worst_error({0.5, 0.25, 0.25}, 20000), 1);
  EXPECT_LT(worst_error({0.6, 0.2, 0.15, 0.05}, 20000), 1);
  EXPECT_LT(worst_error({1e-3, 1, 0, 1e-6}, 20000), 1);
}

TEST(Mixture, running_shares_of_many_random_sources_stay_within_one_and_a_half) {
  for (uint64_t trial = 0; trial < 20; ++trial) {
    std::vector<double> weights;
    for (uint64_t s = 0; s < 2 + trial; ++s) weights.push_back(std::exp(4 * base::normal_at(trial + 1, s) / 2));
    EXPECT_LT(worst_error(weights, 3000), 1.5) << "trial " << trial;
  }
}

TEST(Mixture, far_samples_are_found_at_once_and_agree_with_the_counts) {
  const Mixture mixture({0.37, 0.21, 0.42});
  const int64_t far = int64_t{1} << 50;
  const auto pick = mixture.at(far);
  auto before = mixture.counts(far);
  EXPECT_EQ(before[pick.source], pick.index);
  ++before[pick.source];
  EXPECT_EQ(mixture.counts(far + 1), before);
}

TEST(Mixture, weights_that_mean_nothing_are_refused) {
  EXPECT_THROW(Mixture({}), base::ConfigError);
  EXPECT_THROW(Mixture({0, 0}), base::ConfigError);
  EXPECT_THROW(Mixture({1, -1}), base::ConfigError);
  EXPECT_THROW(Mixture({1, std::nan("")}), base::ConfigError);
}

}  // namespace
}  // namespace ingot::data
