#include "models/parts/mlp.h"

#include "base/error.h"
#include "kernels/activation.h"
#include "layers/linear.h"
#include "models/decode/feed_forward.h"
#include "models/parts/biases.h"

namespace ingot::models {

using layers::Parameter;

Mlp::Mlp(const BlockContext& block, int64_t layer, kernels::Gate kind, Shape shape)
    : FeedForward(block, layer), kind_(kind), shape_(shape) {
  if (shape.ffn < 1) throw base::ConfigError("model.{} = {} must be positive for the {} family", shape.setting, shape.ffn, config().family);
  schedule().require_shares(shape.setting, shape.ffn);
}

void Mlp::declare(const std::string& layer_prefix) {
  const auto& c = config();
  const std::string prefix = layer_prefix + shape_.module + ".";
  const int64_t ffn = shape_.ffn;
  gate_ = &block_.matrix(prefix + "gate_proj.weight", {ffn, c.hidden}, block_.cut_rows(ffn, c.hidden));
  up_ = &block_.matrix(prefix + "up_proj.weight", {ffn, c.hidden}, block_.cut_rows(ffn, c.hidden));
  down_ = &block_.matrix(prefix + "down_proj.weight", {c.hidden, ffn}, block_.cut_columns(c.hidden, ffn));
  if (!c.mlp_bias) return;
  gate_bias_ = &block_.vector(prefix + "gate_proj.bias", ffn, 0, block_.cut_vector(ffn));
  up_bias_ = &block_.vector(prefix + "up_proj.bias", ffn, 0, block_.cut_vector(ffn));
  down_bias_ = &block_.vector(prefix + "down_proj.bias", c.hidden, 0);
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

bool Mlp::add_decode_steps(decode::Program& program) const { return add_decode_steps(program, /*is_beside=*/false, nullptr); }

bool Mlp::add_decode_steps(decode::Program& program, bool is_beside, Parameter* weight) const {
  return decode::add_mlp(program, {gate_, up_, down_, gate_bias_, up_bias_, down_bias_, kind_, is_beside, weight});
}

}  // namespace ingot::models
