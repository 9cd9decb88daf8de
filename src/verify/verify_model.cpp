#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "device/device.h"
#include "kernels/differentiable.h"
#include "layers/dtype.h"
#include "models/adapters.h"
#include "models/hugging_face.h"
#include "models/peft_folder.h"
#include "verify/fixture.h"
#include "verify/verify.h"

namespace ingot::verify {
namespace {

// Defaults of the references' own README: a few times the difference between fp32 and fp64, or between two kernels.
constexpr Tolerance kActivations{3e-5, 0}, kProbabilities{0, 2e-5}, kLoss{0, 5e-6}, kGradients{1e-4, 1e-6};

class Recorder : public models::Observer {
 public:
  explicit Recorder(std::map<std::string, at::Tensor>& seen, const at::Tensor& ids) : seen_(seen), batch_(ids.size(0)), seq_(ids.size(1)) {}
  void on_hidden(int64_t layer, const at::Tensor& residual) override {
    seen_[layer < 0 ? "hidden.in" : fmt::format("hidden.{}", layer)] = residual.detach();
  }
  void on_routing(int64_t layer, const layers::Routing& routing) override {
    const auto shaped = [&](const at::Tensor& x) { return x.detach().reshape({batch_, seq_, -1}); };
    const std::string prefix = fmt::format("router.{}.", layer);
    seen_[prefix + "logits"] = shaped(routing.logits);
    seen_[prefix + "probs"] = shaped(at::softmax(routing.logits, -1));
    seen_[prefix + "ids"] = shaped(routing.choice);
    seen_[prefix + "weights"] = shaped(routing.weight);
    if (routing.state.defined()) seen_[prefix + "state"] = shaped(routing.state);
  }

 private:
  std::map<std::string, at::Tensor>& seen_;
  int64_t batch_, seq_;
};

models::ModelConfig config_of(const fs::path& folder, const nlohmann::json& note, const Options& options) {
  auto config = models::read_hugging_face_config(folder);
  // Recorded with transformers patched so that skipped tokens keep p * x.
  if (note.value("family", "").ends_with("skip_identity")) config.skip_output = "identity";
  base::SettingsTable table;
  models::declare_settings(table, config);
  for (const auto& setting : options.settings) {
    const size_t equals = setting.find('=');
    if (equals == std::string::npos) throw base::UsageError("--set {}: write key=value", setting);
    table.set(setting.substr(0, equals), setting.substr(equals + 1), "--set");
  }
  return config;
}

// What the predictors of a model read and predict of rows that are one document each.
std::shared_ptr<const models::FurtherTargets> further_of(const models::Model& model, const at::Tensor& ids, const at::Tensor& targets,
                                                         double coefficient) {
  models::FurtherTargets further{
      .coefficient = coefficient, .ids = {}, .targets = {}, .total = at::zeros({1}, ids.options().dtype(at::kFloat))};
  const int64_t seq = ids.size(1);
  for (int64_t n = 1; n <= model.predictors(); ++n) {
    further.ids.push_back(at::zeros_like(ids));
    further.targets.push_back(at::full_like(ids, -100));
    further.ids.back().narrow(1, 0, seq - n).copy_(ids.narrow(1, n, seq - n));
    further.targets.back().narrow(1, 0, seq - n).copy_(targets.narrow(1, n, seq - n));
  }
  return std::make_shared<models::FurtherTargets>(std::move(further));
}

Tolerance default_tolerance(const std::string& name) {
  if (name == "loss" || name == "mtp_loss" || name == "draft_loss") return kLoss;
  if (name.starts_with("grad.")) return kGradients;
  if (name.ends_with(".probs") || name.ends_with(".weights")) return kProbabilities;
  return kActivations;
}

}  // namespace

// After the last of ids [batch, n], which follow `fed` tokens that the caches have; [batch, vocab].
at::Tensor logits_behind(models::Model& model, const at::Tensor& ids, int64_t fed, std::vector<models::LayerCache>& caches) {
  const at::NoGradGuard no_grad;
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(ids.size(0), ids.size(1), at::Tensor(), fed, model.device());
  context.caches = {&caches};
  const auto hidden = model.forward(ids, context);
  return model.logits(hidden.narrow(1, hidden.size(1) - 1, 1)).squeeze(1);
}

Report verify_model(const fs::path& folder, const fs::path& fixture_path, const Options& options) {
  const Fixture fixture(fixture_path);
  const auto note = fixture.note("fixture");
  auto model = models::create_model(config_of(folder, note, options));
  model->allocate(layers::precision_named(options.dtype), device::device_named(options.device));
  models::load_hugging_face_weights(*model, folder);

  std::map<std::string, at::Tensor> got;
  const auto ids = fixture.tensor("input_ids").to(model->device());
  const int64_t batch = ids.size(0), seq = ids.size(1);
  if (ids.dim() != 2 || ids.numel() == 0 || ids.min().item<int64_t>() < 0 || ids.max().item<int64_t>() >= model->config().vocab_size)
    throw base::ModelError("{}: input_ids are not [batch, seq] ids of a vocabulary of {}", fixture_path.string(),
                           model->config().vocab_size);
  auto targets = at::full_like(ids, -100);
  targets.narrow(1, 0, seq - 1).copy_(ids.narrow(1, 1, seq - 1));

  Recorder recorder(got, ids);
  models::ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(batch, seq, at::Tensor(), 0, model->device());
  context.observer = &recorder;
  {
    const at::NoGradGuard no_grad;
    got["logits"] = model->logits(model->forward(ids, context));
  }
  context.observer = nullptr;
  if (fixture.has("mtp_loss")) context.further = further_of(*model, ids, targets, note.value("mtp_coefficient", 0.3));
  context.learns_drafts = fixture.has("draft_loss");
  if (context.learns_drafts) context.draft_loss = at::zeros({1}, ids.options().dtype(at::kFloat));
  const auto loss = model->loss(ids, targets, 1.0 / static_cast<double>(batch * (seq - 1)), context);
  got["loss"] = loss.detach().reshape({1});
  if (context.learns_drafts) got["draft_loss"] = context.draft_loss;
  if (context.further) got["mtp_loss"] = context.further->total;
  kernels::backward({loss});
  model->parameters().collect_gradients();
  for (const auto& stored : models::stored_tensors(*model))
    if (stored.sources[0].parameter->is_trained())
      got["grad." + stored.name] =
          stored.assemble([](const layers::Parameter& p) { return p.has_gradient ? p.grad : at::zeros_like(p.value); });
  for (const auto& p : model->parameters().all())
    if (models::is_adapter(p->name))
      got["grad." + models::peft_name(model->config(), *p)] = p->has_gradient ? p->grad : at::zeros_like(p->value);

  if (fixture.has("greedy_ids")) {
    const auto expected = fixture.tensor("greedy_ids");
    std::vector<at::Tensor> new_ids, new_logits;
    auto caches = model->new_caches();
    at::Tensor next = ids.narrow(1, 0, note.value("prompt", int64_t{8}));
    int64_t fed = 0;
    for (int64_t i = 0; i < expected.size(1); ++i) {
      new_logits.push_back(logits_behind(*model, next, fed, caches));
      fed += next.size(1);
      next = new_logits.back().argmax(-1).unsqueeze(1);
      new_ids.push_back(next);
    }
    got["greedy_ids"] = device::cat(new_ids, 1);
    got["greedy_logits"] = at::stack(new_logits, 1);
  }

  Report report;
  const bool skip_is_zero = model->config().skip_output == "zero";
  for (const auto& name : fixture.names()) {
    if (name == "input_ids" || name == "aux_loss") continue;
    if (!got.contains(name)) throw base::ModelError("{} holds '{}', which this model does not produce", fixture_path.string(), name);
    auto mine = got[name];
    // The reference records the mixing weight as used: 0 where a skipped token yields 0.
    if (name.ends_with(".weights") && skip_is_zero && name.starts_with("router."))
      mine = mine.masked_fill(got[name.substr(0, name.size() - 7) + "ids"].eq(model->config().experts), 0);
    auto tolerance = default_tolerance(name);
    if (options.rtol) tolerance.rtol = *options.rtol;
    if (options.atol) tolerance.atol = *options.atol;
    report.comparisons.push_back(compare(name, mine, fixture.tensor(name), tolerance));
  }
  return report;
}

}  // namespace ingot::verify
