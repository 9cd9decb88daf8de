// Algorithm: Levenberg-Marquardt on reweighted least squares (weights of Huber's loss), with the exponents as logarithms, so that they stay
// positive, and sizes and tokens relative to the runs' means, so that factors and exponents are told apart.
#include "plan/law.h"

#include <ATen/ops/linalg_solve.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "base/error.h"
#include "device/aten.h"

namespace ingot::plan {
namespace {

constexpr double kHuber = 1e-3;
constexpr size_t kUnknowns = 5, kFewestRuns = 6, kFewestValues = 3;
constexpr double kSameValue = 1.05;  // sizes closer than this factor are one

using Vector = std::array<double, kUnknowns>;  // logarithms of the three terms at the runs' mean, then of the exponents

// The logarithms of what is fitted.
struct Problem {
  std::vector<double> n, d, loss;  // n and d: minus their means
  double mean_n = 0, mean_d = 0;

  explicit Problem(const std::vector<LawPoint>& points) {
    for (const auto& p : points) {
      n.push_back(std::log(p.parameters));
      d.push_back(std::log(p.tokens));
      loss.push_back(std::log(p.loss));
    }
    const auto centred = [](std::vector<double>& x, double& mean) {
      mean = std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(x.size());
      for (double& value : x) value -= mean;
    };
    centred(n, mean_n);
    centred(d, mean_d);
  }
  Problem drawn(const std::vector<size_t>& indices) const {
    Problem some = *this;
    some.n.clear(), some.d.clear(), some.loss.clear();
    for (const size_t i : indices) some.n.push_back(n[i]), some.d.push_back(d[i]), some.loss.push_back(loss[i]);
    return some;
  }

  struct Terms {
    double e, a, b;
    double all() const { return e + a + b; }
  };
  Terms terms(const Vector& x, size_t i) const {
    return {std::exp(x[0]), std::exp(x[1] - std::exp(x[3]) * n[i]), std::exp(x[2] - std::exp(x[4]) * d[i])};
  }
  double residual(const Vector& x, size_t i) const { return std::log(terms(x, i).all()) - loss[i]; }
  double cost(const Vector& x) const {
    double sum = 0;
    for (size_t i = 0; i < n.size(); ++i) {
      const double r = std::abs(residual(x, i));
      sum += r <= kHuber ? r * r / 2 : kHuber * (r - kHuber / 2);
    }
    return std::isfinite(sum) ? sum : HUGE_VAL;
  }
  Law law_of(const Vector& x) const {
    const double alpha = std::exp(x[3]), beta = std::exp(x[4]);
    return {std::exp(x[0]), std::exp(x[1] + alpha * mean_n), std::exp(x[2] + beta * mean_d), alpha, beta};
  }
};

// One step from x with the normal equations damped by `damping`.
Vector step(const Problem& p, const Vector& x, double damping) {
  const auto matrix = at::zeros({kUnknowns, kUnknowns}, at::kDouble), right = at::zeros({kUnknowns}, at::kDouble);
  auto m = matrix.accessor<double, 2>();
  auto g = right.accessor<double, 1>();
  for (size_t i = 0; i < p.n.size(); ++i) {
    const auto t = p.terms(x, i);
    const double all = t.all(), r = p.residual(x, i), weight = std::abs(r) <= kHuber ? 1 : kHuber / std::abs(r);
    const Vector slope = {t.e / all, t.a / all, t.b / all, -t.a / all * p.n[i] * std::exp(x[3]), -t.b / all * p.d[i] * std::exp(x[4])};
    for (size_t row = 0; row < kUnknowns; ++row) {
      g[static_cast<int64_t>(row)] -= weight * slope[row] * r;
      for (size_t column = 0; column < kUnknowns; ++column)
        m[static_cast<int64_t>(row)][static_cast<int64_t>(column)] += weight * slope[row] * slope[column];
    }
  }
  for (int64_t row = 0; row < static_cast<int64_t>(kUnknowns); ++row) m[row][row] += damping * (m[row][row] + 1e-12);
  const auto change = at::linalg_solve(matrix, right);
  Vector next = x;
  // An exponent moves by a factor of e at the most.
  for (size_t i = 0; i < kUnknowns; ++i) next[i] += std::clamp(change.const_data_ptr<double>()[i], -1.0, 1.0);
  return next;
}

std::pair<Vector, double> descend(const Problem& p, Vector x) {
  double cost = p.cost(x), damping = 1e-3;
  for (int iteration = 0; iteration < 200 && damping < 1e8; ++iteration) {
    const auto next = step(p, x, damping);
    const double there = p.cost(next);
    if (!(there < cost)) {
      damping *= 4;
      continue;
    }
    const bool is_done = cost - there < 1e-12 * cost;
    x = next, cost = there, damping = std::max(damping / 4, 1e-12);
    if (is_done) break;
  }
  return {x, cost};
}

Vector best_of_many_starts(const Problem& p) {
  const double mean = std::accumulate(p.loss.begin(), p.loss.end(), 0.0) / static_cast<double>(p.loss.size());
  Vector best{};
  double least = HUGE_VAL;
  for (const double alpha : {0.2, 0.4, 0.8})
    for (const double beta : {0.2, 0.4, 0.8})
      for (const double of_n : {0.1, 0.4})
        for (const double of_d : {0.1, 0.4}) {
          const Vector start = {mean + std::log(1 - of_n - of_d), mean + std::log(of_n), mean + std::log(of_d), std::log(alpha),
                                std::log(beta)};
          const auto [x, cost] = descend(p, start);
          if (cost < least) least = cost, best = x;
        }
  return best;
}

size_t different(const std::vector<LawPoint>& points, double LawPoint::*what) {
  std::vector<double> values;
  for (const auto& p : points) values.push_back(p.*what);
  std::sort(values.begin(), values.end());
  size_t count = 0;
  double last = 0;
  for (const double value : values)
    if (count == 0 || value > kSameValue * last) ++count, last = value;
  return count;
}

bool tell_apart(const std::vector<LawPoint>& points) {
  return points.size() >= kFewestRuns && different(points, &LawPoint::parameters) >= kFewestValues &&
         different(points, &LawPoint::tokens) >= kFewestValues;
}

}  // namespace

double Law::loss(double parameters, double tokens) const { return e + a * std::pow(parameters, -alpha) + b * std::pow(tokens, -beta); }

Allocation allocate(const Law& law, double flops, double flops_per_parameter) {
  // With N D = C / k the loss is least where alpha A / N^alpha = beta B / D^beta.
  const double product = flops / flops_per_parameter, sum = law.alpha + law.beta;
  const double parameters = std::pow(law.alpha * law.a / (law.beta * law.b), 1 / sum) * std::pow(product, law.beta / sum);
  return {parameters, product / parameters, law.loss(parameters, product / parameters)};
}

LawFit fit_law(const std::vector<LawPoint>& points, int resamples) {
  for (const auto& p : points)
    if (!(p.parameters > 0 && p.tokens > 0 && p.loss > 0 && p.flops_per_token > 0))
      throw base::DataError("{}: a run needs parameters, tokens, FLOPs and a loss above 0", p.run);
  if (!tell_apart(points))
    throw base::DataError(
        "{} runs of {} sizes and {} numbers of tokens cannot tell the five numbers of L(N, D) apart: it takes {} of {} and {} at least, "
        "each "
        "5 % or more from the next",
        points.size(), different(points, &LawPoint::parameters), different(points, &LawPoint::tokens), kFewestRuns, kFewestValues,
        kFewestValues);
  const Problem problem(points);
  const auto x = best_of_many_starts(problem);
  LawFit fit;
  fit.law = problem.law_of(x);
  double squares = 0;
  for (size_t i = 0; i < points.size(); ++i) squares += std::pow(problem.residual(x, i), 2);
  fit.residual = std::sqrt(squares / static_cast<double>(points.size()));

  std::mt19937_64 random(20220329);
  std::uniform_int_distribution<size_t> any(0, points.size() - 1);
  for (int i = 0; i < resamples; ++i) {
    std::vector<size_t> indices(points.size());
    for (size_t& index : indices) index = any(random);
    if (std::set<size_t>(indices.begin(), indices.end()).size() < kUnknowns) continue;
    fit.resampled.push_back(problem.law_of(descend(problem.drawn(indices), x).first));
  }

  std::vector<double> costs;
  for (const auto& p : points) costs.push_back(p.flops_per_token / p.parameters);
  std::nth_element(costs.begin(), costs.begin() + static_cast<int64_t>(costs.size() / 2), costs.end());
  fit.flops_per_parameter = costs[costs.size() / 2];

  auto others = points;
  const auto largest = std::max_element(others.begin(), others.end(), [](const auto& a, const auto& b) { return a.flops() < b.flops(); });
  const auto last = *largest;
  fit.largest_flops = last.flops();
  fit.held_out = last.run;
  others.erase(largest);
  if (tell_apart(others)) {
    const Problem without(others);
    fit.held_out_error = without.law_of(best_of_many_starts(without)).loss(last.parameters, last.tokens) / last.loss - 1;
  }
  return fit;
}

Interval interval_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) { return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)]; };
  return {at(0.025), at(0.975)};
}

}  // namespace ingot::plan
