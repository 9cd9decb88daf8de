// What a model's forward pass counts on a device that only counts.
#include "models/flops.h"

#include <ATen/core/grad_mode.h>

#include "base/work_scope.h"
#include "device/tracer.h"
#include "device/virtual_device.h"
#include "layers/cost.h"
#include "models/model.h"

namespace ingot::models {

double ForwardFlops::of_layer(int64_t layer) const {
  const auto known = static_cast<int64_t>(blocks.size());
  return blocks[static_cast<size_t>(layer < known ? layer : layer % known)];
}

ForwardFlops count_forward_flops(const ModelConfig& whole, int64_t seq) {
  auto config = whole;
  config.layers = std::min(config.layers, block_period(config));
  ForwardFlops flops;
  flops.blocks.resize(static_cast<size_t>(config.layers), 0);
  const device::CountingDevice counting(device::Target::cpu);
  const auto model = create_model(config);
  model->allocate(at::kFloat, counting.device());
  const at::NoGradGuard no_grad;
  const auto ids = at::zeros({1, seq}, at::TensorOptions().dtype(at::kLong).device(counting.device()));
  ForwardContext context;
  context.sequences = std::make_shared<layers::Sequences>(1, seq, at::Tensor(), 0, counting.device());
  context.further = model->further_like(ids);
  context.learns_drafts = true;
  device::Tracer tracer(counting.device());
  model->loss(ids, ids, 1, context);
  const auto trace = tracer.finish();
  for (const auto& operation : trace.operations) {
    int64_t layer = -1;
    for (auto scope = operation.scope; scope > 0; scope = trace.scopes[static_cast<size_t>(scope)].parent)
      if (const auto& name = trace.scopes[static_cast<size_t>(scope)].name; name.starts_with("layer ")) layer = std::stoll(name.substr(6));
    (layer < 0 ? flops.outside : flops.blocks[static_cast<size_t>(layer)]) += operation.flops;
  }
  return flops;
}

double training_flops_per_token(const ModelConfig& config, int64_t seq) {
  const auto flops = count_forward_flops(config, seq);
  double all = flops.outside;
  for (int64_t layer = 0; layer < config.layers; ++layer) all += flops.of_layer(layer);
  return (1 + layers::kBackwardFactor) * all / static_cast<double>(seq);
}

double Model::training_flops_per_token(int64_t seq) const { return models::training_flops_per_token(config_, seq); }

}  // namespace ingot::models
