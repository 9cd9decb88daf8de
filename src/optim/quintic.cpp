#include "optim/quintic.h"

#include <ATen/ops/linalg_solve.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "device/aten.h"
#include "optim/config.h"

namespace ingot::optim {
namespace {

constexpr double kMargin = 1.01;  // of singular values above 1, by rounding
constexpr double kLeastShare =
    0.02407327424182761;  // the paper's, of the largest singular value: below it a polynomial would get too flat at the upper end

double value(const Quintic& q, double s) { return s * (q.a + s * s * (q.b + s * s * q.c)); }

// The odd quintic whose largest distance from 1 on [low, high] is least, by Remez' exchange: distances of one size and changing sign at
// both ends and at two points between, where the polynomial turns.
Quintic nearest_to_one(double low, double high) {
  if (low >= (1 - 1e-5) * high) return {15 / 8. / high, -10 / 8. / std::pow(high, 3), 3 / 8. / std::pow(high, 5)};
  double left = (3 * low + high) / 4, right = (low + 3 * high) / 4, distance = 2;
  Quintic q;
  for (int exchange = 0; exchange < 100; ++exchange) {
    const auto points = at::tensor({low, left, right, high}, at::kDouble);
    const auto equations = at::stack({points, points.pow(3), points.pow(5), at::tensor({1., -1., 1., -1.}, at::kDouble)}, 1);
    const auto found = at::linalg_solve(equations, at::ones({4}, at::kDouble));
    const auto* x = found.const_data_ptr<double>();
    q = {x[0], x[1], x[2]};
    if (std::abs(x[3] - distance) < 1e-15) break;
    distance = x[3];
    const double root = std::sqrt(9 * q.b * q.b - 20 * q.a * q.c);
    left = std::sqrt((-3 * q.b - root) / (10 * q.c)), right = std::sqrt((-3 * q.b + root) / (10 * q.c));
  }
  return q;
}

}  // namespace

Quintics polar_express(int64_t steps, double least) {
  Quintics all;
  double low = least, high = 1;
  for (int64_t step = 0; step < steps; ++step) {
    auto q = nearest_to_one(std::max(low, kLeastShare * high), high);
    const double centre = (value(q, low) + value(q, high)) / 2;  // `low` itself may lie below what it was made for
    q = {q.a / centre, q.b / centre, q.c / centre};
    low = value(q, low), high = 2 - low;
    if (step + 1 < steps) q = {q.a / kMargin, q.b / std::pow(kMargin, 3), q.c / std::pow(kMargin, 5)};
    all.push_back(q);
  }
  return all;
}

std::vector<std::string> polynomial_names() { return {"quintic", "polar_express"}; }

Quintics quintics_of(const OptimizerConfig& config) {
  const auto& given = config.newton_schulz_coefficients;
  const auto steps = static_cast<size_t>(config.newton_schulz_steps);
  if (given.empty()) return config.newton_schulz_polynomial == "quintic" ? Quintics(steps) : polar_express(config.newton_schulz_steps);
  if (given.size() != 3 && given.size() != 3 * steps)
    throw base::ConfigError(
        "optimizer.newton_schulz_coefficients has {} numbers: a, b, c of every step are 3, those of each of {} steps {}", given.size(),
        steps, 3 * steps);
  Quintics all;
  for (size_t step = 0; step < steps; ++step) {
    const double* from = given.data() + (given.size() == 3 ? 0 : 3 * step);
    all.push_back({from[0], from[1], from[2]});
  }
  return all;
}

}  // namespace ingot::optim
