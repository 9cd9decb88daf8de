
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "device/device.h"
#include "kernels/differentiable.h"
#include "kernels/fp32_islands.h"
#include "layers/dtype.h"
#include "models/hugging_face.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "verify/fixture.h"
#include "verify/verify.h"

namespace ingot::verify {
namespace {

// Final weights after AdamW divide by the root of tiny second moments, which magnifies the reference's own fp32 rounding: run
// again on a CPU with other vector instructions, transformers itself moves by 3.4e-6 (docs/verify.md).
constexpr Tolerance kDouble{1e-6, 0}, kDoubleFinal{1e-5, 0}, kSingle{2e-3, 0};  // relative

optim::OptimizerConfig config_of(const nlohmann::json& o) {
  optim::OptimizerConfig c;
  try {
    c.name = o.at("optimizer");
    c.lr = o.at("lr");
    c.beta1 = o.at("betas").at(0);
    c.beta2 = o.at("betas").at(1);
    c.eps = o.at("eps");
    c.weight_decay = o.at("weight_decay");
    c.clip = o.at("clip");
    c.warmup_steps = o.at("warmup_steps");
    c.momentum = o.at("momentum");
    c.nesterov = o.at("nesterov");
    c.newton_schulz_steps = o.at("newton_schulz_steps");
    c.rms_match = o.at("rms_match");
  } catch (const nlohmann::json::exception& wrong) {
    throw base::ModelError("the options of the trajectory are incomplete: {}", wrong.what());
  }
  c.schedule = "cosine";
  c.final_lr_fraction = 0.1;
  c.balancing_lr = 0;
  return c;
}

}  // namespace

Report verify_trajectory(const fs::path& folder, const fs::path& fixture_path, const Options& options) {
  const kernels::Fp32Islands as_recorded;
  const Fixture fixture(fixture_path);
  const auto config = config_of(fixture.note("options"));
  const auto dtype = layers::precision_named(options.dtype).dtype;
  auto model = models::load_hugging_face_model(folder, dtype, device::device_named(options.device));
  optim::Optimizer optimizer(model->parameters(), config);

  const auto all_ids = fixture.tensor("input_ids");  // [steps, batch, seq]
  const int64_t steps = all_ids.size(0), batch = all_ids.size(1), seq = all_ids.size(2);
  auto losses = at::zeros({steps}, at::kDouble), norms = at::zeros({steps}, at::kDouble);
  for (int64_t step = 0; step < steps; ++step) {
    const auto ids = all_ids[step].to(model->device());
    auto targets = at::full_like(ids, -100);
    targets.narrow(1, 0, seq - 1).copy_(ids.narrow(1, 1, seq - 1));
    models::ForwardContext context;
    context.sequences = std::make_shared<layers::Sequences>(batch, seq, at::Tensor(), 0, model->device());
    const auto loss = model->loss(ids, targets, 1.0 / static_cast<double>(batch * (seq - 1)), context);
    kernels::backward({loss});
    model->parameters().collect_gradients();
    const auto norm = optimizer.gradient_norm();
    losses[step] = loss.item<double>();
    norms[step] = norm.norm;
    optimizer.step(optim::learning_rate(config, config.lr, step, steps), norm.norm);
  }

  const auto fallback = dtype == at::kDouble ? kDouble : kSingle;
  const Tolerance tolerance{options.rtol.value_or(fallback.rtol), options.atol.value_or(fallback.atol)};
  Report report;
  report.comparisons.push_back(compare("loss", losses, fixture.tensor("loss"), tolerance));
  report.comparisons.push_back(compare("grad_norm", norms, fixture.tensor("grad_norm"), tolerance));
  for (const auto& name : fixture.names()) {
    if (!name.starts_with("final.")) continue;
    const auto& parameter = model->parameters().get(name.substr(6));
    const Tolerance final{options.rtol.value_or(dtype == at::kDouble ? kDoubleFinal.rtol : fallback.rtol), tolerance.atol};
    report.comparisons.push_back(compare(name, optimizer.master_of(parameter), fixture.tensor(name), final));
  }
  return report;
}

}  // namespace ingot::verify
