#include "models/parts/zaya_router.h"

#include <cmath>

#include "models/decode/feed_forward.h"

namespace ingot::models {

using layers::Parameter;

void ZayaRouter::declare(const std::string& prefix) {
  const int64_t r = config().router_hidden;
  parameters_ = {.down_weight = &fan_in_matrix(prefix + "down_proj.weight", {r, config().hidden}),
                 .down_bias = &block_.vector(prefix + "down_proj.bias", r, 0),
                 .state_scale = is_first_ ? nullptr : &block_.vector(prefix + "router_states_scale", r, 1),
                 .norm_weight = &block_.vector(prefix + "router_mlp.norm.weight", r, 1),
                 .fc1_weight = &fan_in_matrix(prefix + "router_mlp.fc1.weight", {r, r}),
                 .fc1_bias = &block_.vector(prefix + "router_mlp.fc1.bias", r, 0),
                 .fc2_weight = &fan_in_matrix(prefix + "router_mlp.fc2.weight", {r, r}),
                 .fc2_bias = &block_.vector(prefix + "router_mlp.fc2.bias", r, 0),
                 .out_weight = &fan_in_matrix(prefix + "router_mlp.out_proj.weight", {classes(), r}),
                 .balancing_bias = &block_.add(
                     {.name = prefix + "balancing_biases", .shape = {classes()}, .kind = Parameter::Kind::buffer, .keeps_fp32 = true}),
                 .experts = config().experts,
                 .top_k = config().top_k};
}

// Scaled by fan-in, not by init_std: with the small deviation all tokens would choose alike until the router has grown.
Parameter& ZayaRouter::fan_in_matrix(const std::string& name, tensor::Shape shape) const {
  const double deviation = 1 / std::sqrt(static_cast<double>(shape.back()));
  const auto fan_in = shape.back() == config().hidden ? BlockContext::FanIn::grows : BlockContext::FanIn::fixed;
  auto& parameter = block_.matrix(name, std::move(shape), {}, fan_in);
  parameter.initial = tensor::Initial::normal(deviation);
  parameter.keeps_fp32 = true;
  return parameter;
}

void ZayaRouter::initialise() {
  if (config().skip_class) parameters_.balancing_bias->value[config().experts] = config().skip_bias;
}

layers::Routing ZayaRouter::route(const at::Tensor& x, const at::Tensor& state, const layers::ChooseClasses& choose) const {
  return layers::route(x, state, parameters_, config().norm_eps, choose);
}

bool ZayaRouter::add_decode_steps(decode::Program& program, const std::shared_ptr<decode::Choices>& choices) const {
  return decode::add_router(program, parameters_, config().norm_eps, choices);
}

}  // namespace ingot::models
