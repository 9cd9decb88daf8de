#include "plan/report/law.h"

#include <algorithm>
#include <cmath>

#include "base/text.h"

namespace ingot::plan {
namespace {

using Json = nlohmann::ordered_json;

// Where a proposal's own spread, the fit's error or the held-out run's make it a guess, and where there is no E to speak of. Ours.
constexpr double kWide = 4, kWrong = 0.02, kFar = 10, kNoFloor = 0.01;

template <class Of>
Interval interval_over(const LawFit& fit, const Of& of) {
  std::vector<double> values;
  for (const auto& law : fit.resampled) values.push_back(of(law));
  return interval_of(std::move(values));
}

Json to_json(const Interval& interval) { return {interval.low, interval.high}; }

struct Proposal {
  Allocation best;
  Interval parameters, tokens, loss;
  double beyond;  // the budget over the largest run's FLOPs
  std::vector<std::string> doubts;
};

Proposal propose(const LawFit& fit, double flops) {
  const auto of = [&](double Allocation::*what) {
    return interval_over(fit, [&](const Law& law) { return allocate(law, flops, fit.flops_per_parameter).*what; });
  };
  Proposal p{allocate(fit.law, flops, fit.flops_per_parameter),
             of(&Allocation::parameters),
             of(&Allocation::tokens),
             of(&Allocation::loss),
             flops / fit.largest_flops,
             {}};
  if (p.beyond > kFar) p.doubts.push_back(fmt::format("{:.0f} times the FLOPs of the largest run", p.beyond));
  if (p.parameters.high > kWide * p.parameters.low)
    p.doubts.push_back(fmt::format("the runs leave a factor of {:.1f} open in the size", p.parameters.high / p.parameters.low));
  if (fit.residual > kWrong) p.doubts.push_back(fmt::format("the fit is off by {:.1f} % of the runs' losses", 100 * fit.residual));
  if (fit.law.e < kNoFloor) p.doubts.push_back("no loss that stays shows in runs so short: it would fall to 0");
  if (!fit.held_out_error) p.doubts.push_back("no run can be left out to test the fit");
  else if (std::abs(*fit.held_out_error) > kWrong)
    p.doubts.push_back(fmt::format("the largest run was predicted {:+.1f} % off by the others", 100 * *fit.held_out_error));
  return p;
}

}  // namespace

Document law_document(const std::vector<LawPoint>& points, const LawFit& fit, std::vector<double> budgets) {
  if (budgets.empty()) budgets = {10 * fit.largest_flops};
  Document document;
  auto& [json, text, fits] = document;
  const auto range = [&](double LawPoint::*what) {
    const auto [least, most] =
        std::minmax_element(points.begin(), points.end(), [&](const auto& a, const auto& b) { return a.*what < b.*what; });
    return Interval{(*least).*what, (*most).*what};
  };
  const auto sizes = range(&LawPoint::parameters), tokens = range(&LawPoint::tokens);
  const Law& law = fit.law;
  json = {{"runs", points.size()},
          {"parameters", to_json(sizes)},
          {"tokens", to_json(tokens)},
          {"largest_flops", fit.largest_flops},
          {"flops_per_parameter_and_token", fit.flops_per_parameter},
          {"law", Json::object()},
          {"residual", fit.residual},
          {"held_out", {{"run", fit.held_out}, {"error", fit.held_out_error ? Json(*fit.held_out_error) : Json()}}},
          {"budgets", Json::array()}};
  text = fmt::format("{} runs: {} to {} parameters, {} to {} tokens; a token costs {:.2f} FLOPs for each parameter\n\n", points.size(),
                     base::format_count(sizes.low), base::format_count(sizes.high), base::format_count(tokens.low),
                     base::format_count(tokens.high), fit.flops_per_parameter);
  text += "L(N, D) = E + A / N^alpha + B / D^beta\n";
  for (const auto& [name, member] :
       {std::pair{"E", &Law::e}, {"A", &Law::a}, {"B", &Law::b}, {"alpha", &Law::alpha}, {"beta", &Law::beta}}) {
    const auto interval = interval_over(fit, [&](const Law& l) { return l.*member; });
    json["law"][name] = {{"value", law.*member}, {"interval", to_json(interval)}};
    text += fmt::format("  {:<6}{:>10.4g}   {:.4g} to {:.4g}\n", name, law.*member, interval.low, interval.high);
  }
  text +=
      fmt::format("95 % intervals from {} fits of runs drawn with replacement; the fit is off by {:.2f} % of a loss (root mean square)\n",
                  fit.resampled.size(), 100 * fit.residual);
  if (fit.held_out_error)
    text +=
        fmt::format("{}, the largest run, is predicted {:+.2f} % off by a fit to the others\n", fit.held_out, 100 * *fit.held_out_error);
  for (const double flops : budgets) {
    const auto p = propose(fit, flops);
    json["budgets"].push_back({{"flops", flops},
                               {"parameters", p.best.parameters},
                               {"parameters_interval", to_json(p.parameters)},
                               {"tokens", p.best.tokens},
                               {"tokens_interval", to_json(p.tokens)},
                               {"loss", p.best.loss},
                               {"loss_interval", to_json(p.loss)},
                               {"beyond_largest_run", p.beyond},
                               {"doubts", p.doubts}});
    text +=
        fmt::format("\n{:.3g} FLOPs: {} parameters ({} to {}) on {} tokens ({} to {}), {:.1f} for each; loss {:.3f} ({:.3f} to {:.3f})\n",
                    flops, base::format_count(p.best.parameters), base::format_count(p.parameters.low),
                    base::format_count(p.parameters.high), base::format_count(p.best.tokens), base::format_count(p.tokens.low),
                    base::format_count(p.tokens.high), p.best.tokens / p.best.parameters, p.best.loss, p.loss.low, p.loss.high);
    text += p.doubts.empty() ? fmt::format("  {:.2g} times the FLOPs of the largest run; nothing speaks against it\n", p.beyond)
                             : fmt::format("  a guess: {}\n", fmt::join(p.doubts, "; "));
  }
  return document;
}

}  // namespace ingot::plan
