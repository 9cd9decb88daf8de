#include "models/adapters.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/closest_name.h"
#include "base/error.h"
#include "base/text.h"

namespace ingot::models {
namespace {

using layers::Parameter;

constexpr std::string_view kWeight = ".weight", kDown = ".lora_A.weight", kUp = ".lora_B.weight";

// Matrices that layers::linear multiplies with; routers keep fp32.
bool can_have_adapter(const Parameter& p) {
  return p.kind == Parameter::Kind::matrix && p.shape.size() == 2 && !p.is_expert && !p.keeps_fp32 && p.name.ends_with(kWeight);
}

std::string module_of(const Parameter& p) { return p.name.substr(0, p.name.size() - kWeight.size()); }
std::string last_name_of(const Parameter& p) {
  const auto module = module_of(p);
  return module.substr(module.rfind('.') + 1);
}

std::vector<Parameter*> targets_of(const ModelConfig& config, const parallel::Layout& layout, const layers::ParameterList& parameters) {
  const auto& wanted = config.lora_targets;
  std::vector<Parameter*> targets;
  std::set<std::string> names, missing(wanted.begin(), wanted.end());
  for (const auto& p : parameters.all()) {
    if (!can_have_adapter(*p)) continue;
    const auto name = last_name_of(*p);
    names.insert(name);
    missing.erase(name);
    if (wanted.empty() || std::find(wanted.begin(), wanted.end(), name) != wanted.end()) targets.push_back(p.get());
  }
  // A stage of a pipeline need not have what others have.
  if (missing.empty() || layout.stage.is_on()) return targets;
  const std::vector<std::string> known(names.begin(), names.end());
  throw base::ConfigError("model.lora_targets has '{}'; this {} model has {}{}", *missing.begin(), config.family, base::join(known, ", "),
                          base::did_you_mean(*missing.begin(), known));
}

}  // namespace

void declare_adapters(const ModelConfig& config, const parallel::Layout& layout, layers::ParameterList& parameters) {
  if (config.lora_rank == 0) return;
  for (const auto& [name, size] : {std::pair{"tensor", layout.tensor.size}, {"tensor_sequence", layout.tensor_sequence.size}})
    if (size > 1)
      throw base::ConfigError("parallel.{} = {}: the adapters of model.lora_rank = {} are whole on every rank; set it to 1", name, size,
                              config.lora_rank);
  const auto targets = targets_of(config, layout, parameters);
  for (const auto& p : parameters.all()) p->is_frozen = true;
  for (auto* p : targets) {
    const int64_t out = p->shape[0], in = p->shape[1], rank = config.lora_rank;
    const auto add = [&](std::string_view name, tensor::Shape shape, tensor::Initial initial) -> Parameter* {
      parameters.begin_layer(p->layer);
      auto& added = parameters.add(
          {.name = module_of(*p) + std::string(name), .shape = std::move(shape), .kind = Parameter::Kind::matrix, .initial = initial});
      added.last_layer = p->last_layer;
      return &added;
    };
    // The deviation of peft's uniform initial values.
    auto* down = add(kDown, {rank, in}, tensor::Initial::normal(1 / std::sqrt(3.0 * static_cast<double>(in))));
    p->adapter = {
        .down = down, .up = add(kUp, {out, rank}, tensor::Initial::constant(0)), .scale = config.lora_alpha / static_cast<double>(rank)};
  }
}

bool is_adapter(const std::string& name) { return name.ends_with(kDown) || name.ends_with(kUp); }

at::Tensor merged(const Parameter& p, const std::function<at::Tensor(const Parameter&)>& value_of) {
  auto weight = value_of(p).detach();
  if (!p.adapter) return weight;
  const auto wide = weight.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto product = at::matmul(value_of(*p.adapter.up).detach().to(wide), value_of(*p.adapter.down).detach().to(wide));
  return (weight.to(wide) + product * p.adapter.scale).to(weight.scalar_type());
}

}  // namespace ingot::models
