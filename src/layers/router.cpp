#include "layers/router.h"

#include <ATen/core/grad_mode.h>

#include "base/work_scope.h"
#include "kernels/norm.h"
#include "layers/linear.h"

namespace ingot::layers {
namespace {

at::Tensor choose_best(const at::Tensor& probabilities, const Parameter& bias, int64_t top_k, const ChooseClasses& choose) {
  const at::NoGradGuard no_grad;
  const auto scores = probabilities + bias.value;
  const auto choice = top_k == 1 ? scores.argmax(-1) : std::get<1>(scores.topk(top_k, -1)).flatten();
  return choose ? choose(choice) : choice;
}

}  // namespace

Routing route(const at::Tensor& x, const at::Tensor& previous_state, const RouterParameters& p, double norm_eps,
              const ChooseClasses& choose) {
  Routing routing;
  const auto wide = p.down_weight->value.scalar_type();
  routing.state = linear(x.to(wide), {p.down_weight}, {p.down_bias});
  const base::WorkScope scope("route", base::owns(base::WorkKind::routing));
  if (p.state_scale && previous_state.defined()) routing.state = routing.state + p.state_scale->value * previous_state;
  auto h = kernels::rms_norm(routing.state, p.norm_weight->value, norm_eps, wide);
  h = at::gelu(linear(h, {p.fc1_weight}, {p.fc1_bias}));
  h = at::gelu(linear(h, {p.fc2_weight}, {p.fc2_bias}));
  routing.logits = linear(h, {p.out_weight});
  const auto probabilities = at::softmax(routing.logits, -1);
  routing.choice = choose_best(probabilities, *p.balancing_bias, p.top_k, choose);
  routing.weight = probabilities.gather(1, routing.choice.view({-1, p.top_k})).flatten();
  return routing;
}

Routing route(const at::Tensor& x, const LinearRouterParameters& p, const ChooseClasses& choose) {
  Routing routing;
  routing.logits = linear(x.to(p.weight->value.scalar_type()), {p.weight});
  const base::WorkScope scope("route");
  const auto probabilities = at::softmax(routing.logits, -1);
  routing.choice = choose_best(probabilities, *p.balancing_bias, p.top_k, choose);
  auto weight = probabilities.gather(1, routing.choice.view({-1, p.top_k}));
  if (p.renormalises) weight = weight / weight.sum(-1, /*keepdim=*/true);
  routing.weight = weight.flatten();
  return routing;
}

}  // namespace ingot::layers
