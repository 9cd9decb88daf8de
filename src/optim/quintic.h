// The polynomials of Newton-Schulz iterations (newton_schulz.h), which drive every singular value of a matrix towards 1.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ingot::optim {

struct OptimizerConfig;

/// x <- a x + (b A + c A^2) x with A = x x^T: singular values s become a s + b s^3 + c s^5. Those of K. Jordan's Muon (ZAYA1,
/// arXiv 2511.17127, section V-B), which are the same in each iteration and leave singular values between 0.7 and 1.2.
struct Quintic {
  double a = 3.4445, b = -4.7750, c = 2.0315;
  bool operator==(const Quintic&) const = default;
};

/// One for each iteration.
using Quintics = std::vector<Quintic>;

/// Polar Express (Amsel et al., arXiv 2505.16932): each is the one that is nearest to 1 wherever the iterations before it may have left
/// singular values of [least, 1]. All but the last are for arguments that are 1.01 times as large, so that rounded ones do not grow.
Quintics polar_express(int64_t steps, double least = 1e-3);

/// The values of optimizer.newton_schulz_polynomial.
std::vector<std::string> polynomial_names();

/// Those of the settings. Throws ConfigError where the coefficients are neither three nor three for each step.
Quintics quintics_of(const OptimizerConfig& config);

}  // namespace ingot::optim
