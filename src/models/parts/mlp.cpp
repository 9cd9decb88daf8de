#include "models/parts/mlp.h"

#include "base/error.h"
#include "kernels/activation.h"
#include "layers/linear.h"
#include "models/parts/biases.h"

namespace ingot::models {

using layers::Parameter;

Mlp::Mlp(const BlockContext& block, int64_t layer, kernels::Gate kind) : FeedForward(block, layer), kind_(kind) {
  const auto& c = config();
  if (c.ffn < 1) throw base::ConfigError("model.ffn = {} must be positive for the {} family", c.ffn, c.family);
  schedule().require_shares("ffn", c.ffn);
}

void Mlp::declare(const std::string& prefix) {
  const auto& c = config();
  gate_ = &block_.matrix(prefix + "mlp.gate_proj.weight", {c.ffn, c.hidden}, block_.cut_rows(c.ffn, c.hidden));
  up_ = &block_.matrix(prefix + "mlp.up_proj.weight", {c.ffn, c.hidden}, block_.cut_rows(c.ffn, c.hidden));
  down_ = &block_.matrix(prefix + "mlp.down_proj.weight", {c.hidden, c.ffn}, block_.cut_columns(c.hidden, c.ffn));
  if (!c.mlp_bias) return;
  gate_bias_ = &block_.vector(prefix + "mlp.gate_proj.bias", c.ffn, 0, block_.cut_vector(c.ffn));
  up_bias_ = &block_.vector(prefix + "mlp.up_proj.bias", c.ffn, 0, block_.cut_vector(c.ffn));
  down_bias_ = &block_.vector(prefix + "mlp.down_proj.bias", c.hidden, 0);
}

FeedForward::Result Mlp::forward(const at::Tensor& x, const at::Tensor& /*router_state*/, const ForwardContext& context) const {
  return {with_bias(schedule().run(layer(), x, *context.sequences), down_bias_), {}};
}

layers::TokenwiseLayer Mlp::layer() const {
  layers::TokenwiseLayer layer{.weights = {gate_, up_}, .last = down_};
  if (gate_bias_) layer.weights.insert(layer.weights.end(), {gate_bias_, up_bias_});
  layer.inner = [kind = kind_](const at::Tensor& x, const layers::ShardOfWeights& weights) {
    const auto biases = std::vector<Parameter*>(weights.begin() + 2, weights.end());
    return kernels::glu(layers::linear(x, {weights[0], weights[1]}, biases), kind);
  };
  return layer;
}

}  // namespace ingot::models
