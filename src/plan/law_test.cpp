// The oracle: runs made of known constants.
#include "plan/law.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"

namespace ingot::plan {
namespace {

// Chinchilla's third approach (arXiv 2203.15556, eq. 10).
constexpr Law kChinchilla{1.69, 406.4, 410.7, 0.34, 0.28};

std::vector<LawPoint> runs(double noise, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> error(0, noise);
  std::vector<LawPoint> points;
  for (const double n : {44e6, 117e6, 300e6, 800e6, 2e9, 6e9})
    for (const double per_parameter : {4.0, 12.0, 30.0, 80.0})
      points.push_back({"run " + std::to_string(points.size()), n, per_parameter * n,
                        kChinchilla.loss(n, per_parameter * n) * std::exp(error(random)), 6 * n});
  return points;
}

TEST(Law, is_recovered_from_runs_without_noise) {
  const auto fit = fit_law(runs(0, 1), 0);
  EXPECT_NEAR(fit.law.e, kChinchilla.e, 1e-3);
  EXPECT_NEAR(fit.law.alpha, kChinchilla.alpha, 1e-3);
  EXPECT_NEAR(fit.law.beta, kChinchilla.beta, 1e-3);
  EXPECT_NEAR(fit.law.a / kChinchilla.a, 1, 0.02);
  EXPECT_NEAR(fit.law.b / kChinchilla.b, 1, 0.02);
  EXPECT_LT(fit.residual, 1e-6);
  EXPECT_NEAR(fit.flops_per_parameter, 6, 1e-12);
  EXPECT_EQ(fit.held_out, "run 23");
  EXPECT_NEAR(fit.held_out_error.value(), 0, 1e-4);
}

TEST(Law, of_noisy_runs_has_intervals_that_cover_the_truth) {
  int covered = 0, all = 0;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const auto fit = fit_law(runs(0.003, seed), 100);
    std::vector<double> alpha, beta;
    for (const auto& law : fit.resampled) alpha.push_back(law.alpha), beta.push_back(law.beta);
    for (const auto& [values, truth] : {std::pair{alpha, kChinchilla.alpha}, {beta, kChinchilla.beta}}) {
      const auto [low, high] = interval_of(values);
      covered += low <= truth && truth <= high ? 1 : 0;
      ++all;
    }
    EXPECT_LT(std::abs(fit.held_out_error.value()), 0.02) << seed;
  }
  EXPECT_GE(covered, all * 3 / 4) << "of " << all;
}

TEST(Law, allocates_a_budget_where_the_loss_is_least) {
  const double budget = 5.76e23;
  const auto best = allocate(kChinchilla, budget, 6);
  EXPECT_NEAR(6 * best.parameters * best.tokens / budget, 1, 1e-12);
  for (const double factor : {0.9, 1.1}) EXPECT_GT(kChinchilla.loss(best.parameters * factor, best.tokens / factor), best.loss);
  // Chinchilla's own constants say 40 G of its budget (the paper's table A3).
  EXPECT_NEAR(best.parameters / 40e9, 1, 0.25);
}

TEST(Law, is_the_same_each_time) {
  const auto a = fit_law(runs(0.003, 3), 20), b = fit_law(runs(0.003, 3), 20);
  EXPECT_EQ(a.law.alpha, b.law.alpha);
  ASSERT_EQ(a.resampled.size(), b.resampled.size());
  for (size_t i = 0; i < a.resampled.size(); ++i) EXPECT_EQ(a.resampled[i].beta, b.resampled[i].beta);
}

TEST(Law, is_refused_where_runs_cannot_tell) {
  const auto message = [](std::vector<LawPoint> points) {
    try {
      fit_law(points);
    } catch (const base::DataError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  auto few = runs(0, 1);
  few.resize(5);
  EXPECT_THAT(message(few), testing::HasSubstr("5 runs of 2 sizes"));
  auto of_one_size = runs(0, 1);
  for (auto& p : of_one_size) p.parameters = 1e8;
  EXPECT_THAT(message(of_one_size), testing::HasSubstr("24 runs of 1 sizes"));
  auto broken = runs(0, 1);
  broken[3].loss = std::nan("");
  EXPECT_THAT(message(broken), testing::HasSubstr("run 3: a run needs"));
}

}  // namespace
}  // namespace ingot::plan
