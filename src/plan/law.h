// How a model's loss depends on its size and on the tokens that it is trained on, L(N, D) = E + A / N^alpha + B / D^beta, fitted to runs
// (Hoffmann et al. 2022, arXiv 2203.15556, approach 3), and what it says of a budget of FLOPs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ingot::plan {

/// What a run says: at its end, or where it stands.
struct LawPoint {
  std::string run;
  double parameters = 0, tokens = 0;
  double loss = 0;             // nats per token
  double flops_per_token = 0;  // forward and backward
  double flops() const { return flops_per_token * tokens; }
};

struct Law {
  double e = 0, a = 0, b = 0, alpha = 0, beta = 0;
  double loss(double parameters, double tokens) const;
};

/// The size and the tokens of least loss for a budget, when a token costs `flops_per_parameter` FLOPs for each parameter.
struct Allocation {
  double parameters = 0, tokens = 0, loss = 0;
};
Allocation allocate(const Law& law, double flops, double flops_per_parameter);

struct LawFit {
  Law law;
  double residual = 0;                   // root mean square of log(loss) - log(fit)
  std::vector<Law> resampled;            // fits of runs drawn with replacement: what the runs' own spread leaves open
  double flops_per_parameter = 0;        // of a token; the runs' median
  double largest_flops = 0;              // of a run
  std::string held_out;                  // the run of most FLOPs, which a fit to the others predicts
  std::optional<double> held_out_error;  // of that prediction: predicted / measured - 1; none where the others are too few
};

/// Least sum of Huber's loss (delta 1e-3) of log(loss) over many starts; `resamples` intervals come from as many fits. A pure function of
/// its inputs. Throws DataError where the points cannot tell the five numbers apart: fewer than six, or of fewer than three sizes or
/// numbers of tokens.
LawFit fit_law(const std::vector<LawPoint>& points, int resamples = 200);

/// The middle 95 % of values.
struct Interval {
  double low = 0, high = 0;
};
Interval interval_of(std::vector<double> values);

}  // namespace ingot::plan
