#include <ATen/core/grad_mode.h>

#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "device/device.h"
#include "layers/dtype.h"
#include "optim/optimizer.h"
#include "verify/operators.h"

namespace ingot::verify {
namespace {

constexpr Tolerance kDouble{1e-10, 0}, kSingle{2e-5, 0}, kHalf{3e-2, 0};

optim::OptimizerConfig config_of(const nlohmann::json& o, const std::string& name) {
  optim::OptimizerConfig config;
  config.name = name;
  config.clip = 0;
  config.lr = o.value("lr", config.lr);
  config.weight_decay = o.value("weight_decay", config.weight_decay);
  config.eps = o.value("eps", config.eps);
  if (o.contains("betas")) {
    config.beta1 = o["betas"].at(0);
    config.beta2 = o["betas"].at(1);
  }
  config.momentum = o.value("momentum", config.momentum);
  config.nesterov = o.value("nesterov", config.nesterov);
  config.newton_schulz_steps = o.value("newton_schulz_steps", config.newton_schulz_steps);
  if (config.newton_schulz_steps < 1 || config.newton_schulz_steps > 20)
    throw base::ModelError("the reference makes {} Newton-Schulz steps; ingot makes 1 to 20", config.newton_schulz_steps);
  config.rms_match = o.value("rms_match", config.rms_match);
  config.newton_schulz_coefficients = o.value("coefficients", config.newton_schulz_coefficients);
  if (const auto given = config.newton_schulz_coefficients.size(); given % 3 != 0)
    throw base::ModelError("the reference has {} Newton-Schulz coefficients; they come in threes", given);
  return config;
}

// One matrix through the optimizer's steps.
Report verify_update(const Fixture& fixture, const std::string& name, const Options& options) {
  const auto dtype = layers::precision_named(options.dtype).dtype;
  const auto config = config_of(fixture.note("options"), name);

  layers::ParameterList parameters;
  const auto start = fixture.tensor("in.weight");
  auto& weight = parameters.add({.name = "weight", .shape = start.sizes().vec(), .kind = layers::Parameter::Kind::matrix});
  parameters.allocate(dtype, device::device_named(options.device));
  {
    const at::NoGradGuard no_grad;
    weight.value.copy_(start);
  }
  optim::Optimizer optimizer(parameters, config);
  const Tolerance tolerance = operator_tolerance(options);
  Report report;
  for (int64_t step = 0; fixture.has(fmt::format("in.grad.{}", step)); ++step) {
    const auto before = optimizer.master_of(weight).detach().clone();
    weight.accumulate(fixture.tensor(fmt::format("in.grad.{}", step)));
    optimizer.step(config.lr, 0);
    const auto after = optimizer.master_of(weight);
    report.comparisons.push_back(
        compare(fmt::format("out.weight.{}", step), after, fixture.tensor(fmt::format("out.weight.{}", step)), tolerance));
    const auto direction_name = fmt::format("out.direction.{}", step);
    if (!fixture.has(direction_name)) continue;
    // The update is the direction times a known factor, after the decay.
    const double factor = config.lr * config.rms_match * std::sqrt(static_cast<double>(std::max(start.size(0), start.size(1))));
    const auto direction = (before * (1 - config.lr * config.weight_decay) - after) / factor;
    // Taken from a difference of weights: their rounding is magnified by 1 / factor.
    const Tolerance widened{tolerance.rtol * 50, tolerance.atol};
    report.comparisons.push_back(compare(direction_name, direction, fixture.tensor(direction_name), widened));
  }
  if (report.comparisons.empty()) throw base::ModelError("the reference holds no steps (in.grad.0 is missing)");
  return report;
}

}  // namespace

Tolerance operator_tolerance(const Options& options) {
  const auto& fallback = options.dtype == "fp64" ? kDouble : options.dtype == "bf16" ? kHalf : kSingle;
  return {options.rtol.value_or(fallback.rtol), options.atol.value_or(fallback.atol)};
}

Report verify_op(const std::string& name, const fs::path& fixture_path, const Options& options) {
  const std::vector<std::string> known = {"muon", "adamw", "linear_attention"};
  if (std::find(known.begin(), known.end(), name) == known.end())
    throw base::UsageError("unknown operator '{}'; {} can be verified{}", name, base::join(known, ", "), base::did_you_mean(name, known));
  const Fixture fixture(fixture_path);
  if (fixture.text("operator") != name)
    throw base::UsageError("{} records the operator '{}', not '{}'", fixture_path.string(), fixture.text("operator"), name);
  try {
    return name == "linear_attention" ? verify_linear_attention(fixture, options) : verify_update(fixture, name, options);
  } catch (const base::ModelError& wrong) {
    if (std::string(wrong.what()).starts_with(fixture_path.string())) throw;
    throw base::ModelError("{}: {}", fixture_path.string(), wrong.what());
  }
}

}  // namespace ingot::verify
